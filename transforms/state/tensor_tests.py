"""Tests for ``ShardedTensor``: where ``DTensor`` is asked for as well, and where it can take its place."""

from __future__ import annotations

import ast

from ..view import FileView

DTENSOR = "torch.distributed.tensor.DTensor"
_DTENSORS = frozenset({DTENSOR, "torch.distributed._tensor.DTensor", "torch.distributed.tensor.api.DTensor"})
_SAME_ON_BOTH = frozenset({"size", "shape", "dtype", "device", "ndim", "dim", "numel", "requires_grad"})


def test_around(view: FileView, node: ast.expr) -> ast.Call | None:
    """The ``isinstance`` call whose class, or one of whose classes, a node is."""
    child: ast.AST = node
    for ancestor in view.ancestors(node):
        if isinstance(ancestor, ast.Call) and view.external(ancestor.func) == "builtins.isinstance":
            return ancestor if child in ancestor.args[1:2] else None
        if not isinstance(ancestor, (ast.Tuple, ast.BinOp)):
            return None
        child = ancestor
    return None


def asks_for_dtensor(view: FileView, test: ast.Call) -> bool:
    """Whether the same value is also tested for ``DTensor``: in the same test, or in its ``if`` … ``elif`` chain."""
    if _names_dtensor(view, test.args[1]):
        return True
    statement = view.statement(test)
    chain: list[ast.If] = []
    while isinstance(statement, ast.If):
        chain.append(statement)
        above = view.parents[statement]
        statement = above if isinstance(above, ast.If) and above.orelse == [statement] else None
    below = chain[0] if chain else None
    while below is not None and len(below.orelse) == 1 and isinstance(below.orelse[0], ast.If):
        below = below.orelse[0]
        chain.append(below)
    tests = [node for link in chain for node in ast.walk(link.test) if isinstance(node, ast.Call)]
    return any(
        view.external(other.func) == "builtins.isinstance"
        and len(other.args) == 2
        and ast.dump(other.args[0]) == ast.dump(test.args[0])
        and _names_dtensor(view, other.args[1])
        for other in tests
    )


def _names_dtensor(view: FileView, classes: ast.expr) -> bool:
    return any(view.external(node) in _DTENSORS for node in ast.walk(classes) if isinstance(node, (ast.Name, ast.Attribute)))


def local_reads(view: FileView, test: ast.Call) -> list[ast.expr] | None:
    """Reads of the local part where a test holds; None where anything else is done that a ``DTensor`` cannot do."""
    parent = view.parents[test]
    if not isinstance(parent, (ast.If, ast.IfExp)) or parent.test is not test or test.args[1:2] != test.args[1:]:
        return None
    tested = ast.dump(test.args[0])
    found: list[ast.expr] = []
    for child in parent.body if isinstance(parent.body, list) else [parent.body]:
        for node in ast.walk(child):
            if not isinstance(node, (ast.Name, ast.Attribute, ast.Subscript)) or ast.dump(node) != tested:
                continue
            outer = view.parents[node]
            if not isinstance(outer, ast.Attribute):
                return None
            read = _local_part(view, outer)
            if read is not None:
                found.append(read)
            elif outer.attr not in _SAME_ON_BOTH:
                return None
    return found or None


def _local_part(view: FileView, attribute: ast.Attribute) -> ast.expr | None:
    """``value.local_tensor()`` or ``value.local_shards()[0].tensor``."""
    call = view.parents[attribute]
    if not isinstance(call, ast.Call) or call.func is not attribute or call.args or call.keywords:
        return None
    if attribute.attr == "local_tensor":
        return call
    first = view.parents[call]
    if attribute.attr != "local_shards" or not isinstance(first, ast.Subscript):
        return None
    index, tensor = first.slice, view.parents[first]
    is_first = isinstance(index, ast.Constant) and index.value == 0
    return tensor if is_first and isinstance(tensor, ast.Attribute) and tensor.attr == "tensor" else None
