"""Optimizers that add what they compute from parameters to tensors of their own: the first are DTensors."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from ..view import FileView

_PLAIN = frozenset(f"torch.{name}" for name in ("tensor", "zeros", "ones", "full", "empty"))
_NUMBERS = frozenset({"item", "tolist", "full_tensor", "to_local", "numel", "size", "dim", "device", "shape", "dtype", "ndim"})


def sums_of_both(view: FileView) -> Iterator[ast.AugAssign]:
    """``total += torch.dot(update, grad)`` over the parameters of ``group["params"]``, where ``total`` is a plain tensor."""
    for loop in view.nodes(ast.For):
        function = view.function(loop)
        if function is None or view.enclosing_class(loop) is None or not _is_over_parameters(loop):
            continue
        computed = _computed(loop)
        plain = {
            target.id
            for statement in ast.walk(function)
            if isinstance(statement, (ast.Assign, ast.AnnAssign)) and _is_plain(view, statement.value)
            for target in (statement.targets if isinstance(statement, ast.Assign) else [statement.target])
            if isinstance(target, ast.Name)
        }
        for node in ast.walk(loop):
            if isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Name) and node.target.id in plain:
                if _reads(node.value, computed):
                    yield node


def _is_over_parameters(loop: ast.For) -> bool:
    """``for p in group["params"]:``"""
    subscript = loop.iter
    if not isinstance(loop.target, ast.Name) or not isinstance(subscript, ast.Subscript):
        return False
    return isinstance(subscript.slice, ast.Constant) and subscript.slice.value == "params"


def _computed(loop: ast.For) -> set[str]:
    """The loop's parameter, and the names that are computed from it."""
    assert isinstance(loop.target, ast.Name)
    found = {loop.target.id}
    assignments = [node for node in ast.walk(loop) if isinstance(node, ast.Assign)]
    while True:
        more = {
            target.id
            for assignment in assignments
            if _reads(assignment.value, found)
            for target in assignment.targets
            if isinstance(target, ast.Name)
        }
        if more <= found:
            return found
        found |= more


def _is_plain(view: FileView, value: ast.expr | None) -> bool:
    return isinstance(value, ast.Call) and view.external(value.func) in _PLAIN


def _reads(node: ast.AST, names: set[str]) -> bool:
    """Whether an expression is computed from names, and not only from what they tell or from all of their rows."""
    if isinstance(node, ast.Attribute) and node.attr in _NUMBERS:
        return False
    if isinstance(node, ast.Subscript):
        return _reads(node.value, names)
    if isinstance(node, ast.Name):
        return node.id in names
    return any(_reads(child, names) for child in ast.iter_child_nodes(node))
