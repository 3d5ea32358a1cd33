"""Items of the tuples that functions of the repository return, where a call's result is taken apart."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from .file import File


def returned_items(file: File, name: ast.expr) -> Iterator[tuple[File, ast.expr]]:
    """What a name gets of ``a, b = f()``: that item of each tuple that ``f`` returns, with the file that it stands in."""
    bindings = file.bindings.get(name.id, ()) if isinstance(name, ast.Name) else ()
    for binding in bindings:
        target = file.parents[binding]
        statement = file.parents[target]
        value = statement.value if isinstance(statement, ast.Assign) else None
        if not isinstance(target, ast.Tuple) or not isinstance(value, ast.Call):
            continue
        if file.function(binding) is not file.function(name) or any(isinstance(e, ast.Starred) for e in target.elts):
            continue
        place = next(i for i, e in enumerate(target.elts) if e is binding)
        for function in file.program.callees(file, value):
            owner, node = file.program.function_node(function)
            for found in owner.returns_of(node):
                if isinstance(found.value, ast.Tuple) and len(found.value.elts) == len(target.elts):
                    yield owner, found.value.elts[place]
