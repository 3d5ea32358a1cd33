"""Whether tensors of a state dict are computed with: then they have to stay on the device of the other operands."""

from __future__ import annotations

import ast

from ..view import FileView


def is_computed_with(view: FileView, call: ast.Call) -> bool:
    """Whether a state dict that ``call`` gives is more than written to a file: an average is updated from it, say.

    ``cpu_offload=True`` would put its tensors on the CPU, next to operands that are elsewhere.
    """
    function = view.function(call) or view.tree
    names = _names_of(view, call)
    elements = {*names}
    for node in ast.walk(function):
        loops = [node] if isinstance(node, (ast.For, ast.comprehension)) else []
        for loop in loops:
            if names & view.names_in(loop.iter) or call in ast.walk(loop.iter):
                elements |= view.names_in(loop.target)
    return any(
        (isinstance(inner, ast.Name) and inner.id in elements) or inner is call
        for node in ast.walk(function)
        for operand in _operands(node)
        for inner in ast.walk(operand)
    )


def _names_of(view: FileView, call: ast.Call) -> set[str]:
    parent = view.parents[call]
    if not isinstance(parent, ast.Assign) or parent.value is not call:
        return set()
    return {target.id for target in parent.targets if isinstance(target, ast.Name)}


def _operands(node: ast.AST) -> list[ast.expr]:
    """What an expression or statement computes with."""
    if isinstance(node, ast.BinOp):
        sides = [node.left, node.right]
        return [] if any(map(_is_text, sides)) else sides  # ``"module." + name``
    if isinstance(node, ast.AugAssign):
        return [node.target, node.value]
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        name = node.func.attr
        if name.endswith("_") and not name.startswith("_"):
            return [node.func.value, *node.args]
    return []


def _is_text(node: ast.expr) -> bool:
    return isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Constant) and isinstance(node.value, str))
