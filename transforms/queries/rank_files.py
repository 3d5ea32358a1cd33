"""Files that each rank writes for itself: their names tell the rank."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from .assignments import assigned_values
from .conditions import is_rank
from .file import File
from .saved_models import is_writer

_DEEPEST = 3


def is_in_file_of_rank(file: File, node: ast.AST) -> bool:
    """Whether what an expression gives is written, in its own function, to a file whose name tells the rank."""
    return any(_tells_rank(file, path, 0) for path in _paths(file, node))


def _paths(file: File, node: ast.AST) -> Iterator[ast.expr]:
    """Where it is written: by a call that it stands in, or that is given the name that it is assigned to."""
    for around in file.ancestors(node):
        if isinstance(around, ast.Call) and is_writer(file.external(around.func) or ""):
            yield from around.args[1:]
            yield from (keyword.value for keyword in around.keywords)
        if isinstance(around, ast.Assign):
            names = {ast.unparse(target) for target in around.targets}
            function = file.function(node)
            for call in file.nodes(ast.Call):
                if file.function(call) is function and is_writer(file.external(call.func) or "") and call.args:
                    if any(isinstance(n, ast.Name) and n.id in names for n in ast.walk(call.args[0])):
                        yield from call.args[1:]
        if isinstance(around, ast.stmt):
            return


def _tells_rank(file: File, path: ast.expr, depth: int) -> bool:
    for node in ast.walk(path):
        if isinstance(node, ast.expr) and is_rank(file, node):
            return True
        if depth == _DEEPEST:
            continue
        if isinstance(node, ast.Name) and any(_tells_rank(file, value, depth + 1) for value in assigned_values(file, node)):
            return True
        called = file.program.callees(file, node) if isinstance(node, ast.Call) else []
        for owner, function in map(file.program.function_node, called):
            returned = (n.value for n in ast.walk(function) if isinstance(n, ast.Return) and n.value is not None)
            if any(_tells_rank(owner, value, depth + 1) for value in returned):
                return True
    return False
