"""Gradients of a backward without sync that are used or thrown away on their rank, before a backward with sync adds to them.

DDP leaves them in ``p.grad``; FSDP2 keeps them to itself, where neither a look at ``p.grad`` nor ``zero_grad`` reaches them.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from ..view import FileView
from .passes import called_name, calls_in, has_switch

_FIRST_STEPS = frozenset({"zero_grad", "first_step", "ascent_step", "perturb"})
"""``zero_grad``, and what the optimizers of sharpness-aware training call the step that looks at the first gradients."""


def uses_own_gradients(view: FileView, node: ast.AST) -> bool:
    """Whether the gradients of the blocks over a ``no_sync`` are a rank's own to use: no window goes on behind them."""
    scope = view.function(node)
    return any(
        _is_zeroed_inside(view, block) or _is_used_behind(view, block) or _is_all_there_is(view, block, scope)
        for block in _blocks(view, node, scope)
    )


def _blocks(view: FileView, node: ast.AST, scope: ast.AST | None) -> Iterator[ast.With]:
    """The blocks whose context a ``no_sync`` is, where it stands or under the name that it gets."""
    for statement in ast.walk(scope or view.tree):
        if isinstance(statement, ast.With) and view.function(statement) is scope:
            if has_switch(view, statement) or any(node in ast.walk(item.context_expr) for item in statement.items):
                yield statement


def _is_zeroed_inside(view: FileView, block: ast.With) -> bool:
    """``with context(): optimizer.zero_grad(); …``: each such block starts from nothing."""
    return any(called_name(call) == "zero_grad" and not _at_times(view, call, block) for call in calls_in(block.body))


def _is_used_behind(view: FileView, block: ast.With) -> bool:
    """``optimizer.first_step(zero_grad=True)`` behind a block, before the next backward."""
    statements, place = view.block_of(block)
    for statement in statements[place + 1 :]:
        calls = list(calls_in([statement]))
        if any(called_name(call) == "backward" for call in calls) or not isinstance(statement, (ast.Expr, ast.Assign)):
            return False
        if any(called_name(call) in _FIRST_STEPS or any(k.arg == "zero_grad" for k in call.keywords) for call in calls):
            return True
    return False


def _is_all_there_is(view: FileView, block: ast.With, scope: ast.AST | None) -> bool:
    """A function that zeroes gradients and runs one backward: each of its calls ends without sync, or none does."""
    if not isinstance(scope, (ast.FunctionDef, ast.AsyncFunctionDef)):
        return False
    loop = _loop(view, block)
    calls = list(calls_in(scope.body))
    zeroed = [
        call
        for call in calls
        if called_name(call) == "zero_grad" and call.lineno < block.lineno
        and _loop(view, call) is loop and not _at_times(view, call, loop or scope)
    ]  # fmt: skip
    backwards = [call for call in calls if called_name(call) == "backward"]
    return bool(zeroed) and bool(backwards) and all(block in view.ancestors(call) for call in backwards)


def _at_times(view: FileView, node: ast.AST, outer: ast.AST) -> bool:
    """Whether a condition below ``outer`` decides about a node; a flag of an object (``self.deepspeed``) is none."""
    child = node
    for ancestor in view.ancestors(node):
        if ancestor is outer:
            return False
        if isinstance(ancestor, ast.If) and child is not ancestor.test and not _is_flag(ancestor.test):
            return True
        child = ancestor
    return False


def _is_flag(test: ast.expr) -> bool:
    if isinstance(test, ast.UnaryOp):
        return _is_flag(test.operand)
    return isinstance(test, ast.Attribute)


def _loop(view: FileView, node: ast.AST) -> ast.AST | None:
    """The innermost loop around a node in its function; one over optimizers is none."""
    for ancestor in view.ancestors(node):
        if isinstance(ancestor, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
            return None
        if isinstance(ancestor, (ast.For, ast.While)) and not _is_over_optimizers(ancestor):
            return ancestor
    return None


def _is_over_optimizers(loop: ast.For | ast.While) -> bool:
    if not isinstance(loop, ast.For):
        return False
    names = [getattr(node, "attr", getattr(node, "id", "")) for node in ast.walk(loop.iter)]
    return any("optim" in name for name in names)
