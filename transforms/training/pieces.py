"""Pieces of tensors that are written into: ``weight[3].zero_()``, ``weight[:5] *= 2``, ``nn.init.zeros_(weight[0])``.

A piece along the dimension that is sharded is taken off a copy. What is written into it is lost, and nothing raises.
"""

from __future__ import annotations

import ast

from ..view import FileView
from .passes import outside_name

_TAKE_PIECES = frozenset({"select", "narrow", "diagonal", "chunk", "split", "tensor_split", "unfold"})
_WRITES_NOTHING = frozenset({"requires_grad_", "detach_", "retain_grad", "share_memory_"})


def written_piece(view: FileView, node: ast.Call | ast.AugAssign) -> ast.expr | None:
    """The tensor of which a statement or a call writes into a piece."""
    if isinstance(node, ast.AugAssign):
        return _whole(view, node.target) if isinstance(node.target, ast.Subscript) else None
    name = outside_name(view, node.func) or ""
    if name.startswith("torch.nn.init.") and name.endswith("_") and node.args:
        return _whole(view, node.args[0])
    function = node.func
    if not isinstance(function, ast.Attribute) or not function.attr.endswith("_") or function.attr.startswith("_"):
        return None
    return _whole(view, function.value) if function.attr not in _WRITES_NOTHING else None


def _whole(view: FileView, node: ast.expr) -> ast.expr | None:
    """What an expression takes a piece of."""
    piece: ast.expr | None = None
    node = _given(view, node)
    while True:
        if isinstance(node, ast.Subscript):
            if _is_key(node.slice):
                return piece
            if not _takes_all_rows(node.slice):
                piece = node.value
            node = node.value
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            if node.func.attr in _TAKE_PIECES:
                piece = node.func.value
            node = node.func.value
        elif isinstance(node, ast.Attribute) and node.attr == "data":
            node = node.value
        else:
            return piece


def _given(view: FileView, node: ast.expr) -> ast.expr:
    """What a local name is assigned, if that is a piece and the only assignment."""
    if not isinstance(node, ast.Name):
        return node
    scope = view.function(node) or view.tree
    stores = [n for n in ast.walk(scope) if isinstance(n, ast.Name) and n.id == node.id and isinstance(n.ctx, ast.Store)]
    given = view.parents[stores[0]] if len(stores) == 1 else None
    is_piece = isinstance(given, ast.Assign) and isinstance(given.value, (ast.Subscript, ast.Call))
    return given.value if is_piece and isinstance(given, ast.Assign) else node


def _is_key(index: ast.expr) -> bool:
    return isinstance(index, ast.JoinedStr) or (isinstance(index, ast.Constant) and isinstance(index.value, str))


def _takes_all_rows(index: ast.expr) -> bool:
    """``[:, 1]`` and ``[:]`` leave the rows whole, by which parameters are sharded."""
    first = index.elts[0] if isinstance(index, ast.Tuple) and index.elts else index
    return isinstance(first, ast.Slice) and first.lower is None and first.upper is None and first.step is None
