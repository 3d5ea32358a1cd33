"""What a name is assigned in its function or module, and an attribute of ``self`` in its class."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from .file import File
from .local_names import comprehension_of


def assigned_values(file: File, node: ast.Name | ast.Attribute) -> list[ast.expr]:
    """What a name is assigned in its function or module, or an attribute of ``self`` in its class."""
    if isinstance(node, ast.Attribute):
        scope: ast.AST | None = file.enclosing_class(node)
        if not isinstance(node.value, ast.Name):
            return _assigned_to_attribute(file, node.attr)
        if node.value.id != "self":
            scope = file.tree  # a namespace such as ``args`` is handed from function to function under one name
    elif comprehension_of(file, node) is not None:
        return []
    else:
        scope = file.function(node)
    found = _assignments(file, scope or file.tree, ast.dump(node).replace("ctx=Store()", "ctx=Load()"))
    if not found and isinstance(node, ast.Name) and scope is not None:
        found = [
            s.value for s in file.tree.body
            if isinstance(s, ast.Assign) and any(isinstance(t, ast.Name) and t.id == node.id for t in s.targets)
        ]  # fmt: skip
    return found


def assigned_in_other_files(file: File, node: ast.Attribute) -> Iterator[tuple[File, ast.expr]]:
    """What other files assign to an attribute of this name: of a namespace, say, that is handed to this one."""
    for index in file.program.files_that_store(node.attr):
        if index != file.index:
            other = file.program.file(index)
            yield from ((other, value) for value in _assigned_to_attribute(other, node.attr))


def _assigned_to_attribute(file: File, name: str) -> list[ast.expr]:
    """What is assigned to an attribute of this name in the file, whatever it is an attribute of."""
    end = f"attr={name!r}, ctx=Load())"
    return [value for target, found in file.assignments.items() if target.endswith(end) for _, value in found]


def _assignments(file: File, scope: ast.AST, wanted: str) -> list[ast.expr]:
    made = file.assignments.get(wanted, ())
    return [value for statement, value in made if scope is file.tree or scope in file.ancestors(statement)]
