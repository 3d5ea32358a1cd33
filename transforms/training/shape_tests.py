"""Tests of how many dimensions a tensor has: ``p.dim() >= 2``, ``p.ndim == 1``, ``len(p.shape) < 2``."""

from __future__ import annotations

import ast
import operator

_OPERATORS = {
    ast.Eq: operator.eq, ast.NotEq: operator.ne, ast.Lt: operator.lt, ast.LtE: operator.le, ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}  # fmt: skip


def shaped(node: ast.expr) -> ast.expr | None:
    """The tensor whose number of dimensions an expression is."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in ("dim", "ndimension"):
        return node.func.value
    if isinstance(node, ast.Attribute) and node.attr == "ndim":
        return node.value
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "len" and node.args:
        inner = node.args[0]
        if isinstance(inner, ast.Attribute) and inner.attr == "shape":
            return inner.value
    return None


def tells_scalars(test: ast.Compare) -> ast.expr | None:
    """The tensor that a test asks for its dimensions, where no dimension and one give different answers."""
    tensor, other = shaped(test.left), test.comparators[0]
    compare = _OPERATORS.get(type(test.ops[0]))
    if tensor is None or compare is None or len(test.ops) != 1:
        return None
    if not isinstance(other, ast.Constant) or not isinstance(other.value, int):
        return None
    return tensor if compare(0, other.value) != compare(1, other.value) else None
