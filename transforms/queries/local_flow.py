"""What in a function is computed from some of its expressions: over names, lists that are filled and sums that are added to."""

from __future__ import annotations

import ast
from collections.abc import Iterable

_FILLS = frozenset({"append", "add", "extend", "insert", "update", "add_", "copy_", "mul_", "sub_", "fill_", "index_add_"})


def computed_names(scope: ast.AST, sources: Iterable[ast.AST]) -> frozenset[str]:
    """The names in a function that may hold something computed from these expressions, to whatever depth."""
    origins, names = set(sources), set[str]()
    while True:
        before = len(names)
        for node in ast.walk(scope):
            if isinstance(node, ast.Assign | ast.AnnAssign | ast.AugAssign | ast.NamedExpr) and node.value is not None:
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                if _mentions(node.value, origins, names):
                    names |= {name for target in targets for name in _bound(target)}
            elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _FILLS:
                if any(_mentions(argument, origins, names) for argument in node.args):
                    names |= set(_bound(node.func.value))
        if len(names) == before:
            return frozenset(names)


def _mentions(node: ast.AST, origins: set[ast.AST], names: set[str]) -> bool:
    return any(n in origins or (isinstance(n, ast.Name) and n.id in names) for n in ast.walk(node))


def _bound(target: ast.expr) -> list[str]:
    """The names that a target binds, or a part of what they hold."""
    if isinstance(target, ast.Tuple | ast.List):
        return [name for part in target.elts for name in _bound(part)]
    while isinstance(target, ast.Attribute | ast.Subscript | ast.Starred):
        target = target.value
    return [target.id] if isinstance(target, ast.Name) and target.id not in ("self", "cls") else []
