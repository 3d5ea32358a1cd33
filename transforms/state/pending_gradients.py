"""Gradients that are set where optimizer state is loaded: the helper of DCP fills a fresh optimizer only without them.

For an optimizer that has made no step ``set_optimizer_state_dict(…, full_state_dict=True)`` then finds nothing to lay
the state out by, and raises "Expected device to be set".
"""

from __future__ import annotations

import ast

from ..training.passes import called_name
from ..view import FileView


def backward_before(view: FileView, load: ast.Call, optimizer: ast.expr) -> int | None:
    """The line of a backward whose gradients nothing clears before a load into an optimizer that is not seen to step."""
    function = view.function(load)
    start = view.source.span(load)[0]
    before = [
        node for node in ast.walk(function or view.tree)
        if isinstance(node, ast.Call) and view.function(node) is function and view.source.span(node)[1] <= start
    ]  # fmt: skip
    backward = max((node.lineno for node in before if called_name(node) == "backward"), default=None)
    if backward is None or any(called_name(node) == "zero_grad" and node.lineno > backward for node in before):
        return None
    name = view.text(optimizer)
    steps = (node for node in before if called_name(node) == "step")
    if any(name in (view.text(part) for part in [*step.args, *_receiver(step)]) for step in steps):
        return None
    return backward


def _receiver(call: ast.Call) -> list[ast.expr]:
    return [call.func.value] if isinstance(call.func, ast.Attribute) else []
