"""Parts of the module whose method runs: whoever called the method has gathered them."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from .file import File

_GIVE_ENTRIES = frozenset({"enumerate", "iter", "list", "next", "reversed", "tuple", "zip"})


def owner_of_part(file: File, node: ast.AST) -> ast.Name | None:
    """The ``self`` that an expression reads a part off: directly, or by names that its function binds to such parts."""
    return _owner(file, node, set())


def _owner(file: File, node: ast.AST, asked: set[str]) -> ast.Name | None:
    while isinstance(node, (ast.Attribute, ast.Subscript, ast.Call, ast.Starred)):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in _GIVE_ENTRIES and node.args:
            owners = [_owner(file, argument, asked) for argument in node.args]
            return next((owner for owner in owners if owner is not None), None)
        node = node.func if isinstance(node, ast.Call) else node.value
    if not isinstance(node, ast.Name) or node.id == "self":
        return node if isinstance(node, ast.Name) else None
    if node.id in asked:
        return None
    found = [_owner(file, value, asked | {node.id}) for value in _bound_to(file, node)]
    return found[0] if found and all(owner is not None for owner in found) else None


def _bound_to(file: File, name: ast.Name) -> Iterator[ast.AST]:
    """What a name is bound to in its function; the name itself for a binding that gives no part of anything."""
    function = file.function(name)
    for binding in file.bindings.get(name.id, ()):
        if function is None or file.function(binding) is not function:
            continue
        around = next(a for a in file.ancestors(binding) if not isinstance(a, (ast.Tuple, ast.List, ast.Starred)))
        if isinstance(around, (ast.For, ast.comprehension)):
            yield around.iter
        elif isinstance(around, ast.Assign):
            yield around.value
        else:
            yield name
