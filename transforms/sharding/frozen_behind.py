"""Models that are frozen as a whole right behind their wrap: if they only infer, fully_shard brings them nothing."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import TYPE_CHECKING

from ..findings import Level
from ..view import FileView
from .entries_of_loops import collections_of

if TYPE_CHECKING:
    from .data_parallel import DataParallel

ADVICE = (
    "Where nothing is averaged into the model either, leave fully_shard out: the broadcast before it gives every rank the "
    "same model, and each may call it on its own."
)


def name_freezing(ddp: DataParallel) -> None:
    """Says what becomes of a model that is frozen as a whole behind its wrap: its first forward gathers it for good."""
    place = _frozen_at(ddp)
    if place is None:
        return
    ddp.level = Level.REVIEW
    ddp.notes.append(
        f"it is frozen right after (line {place}): for inference alone sharding brings nothing, and ranks have to make their "
        "first call together"
    )
    ddp.advice.append(ADVICE)


def _frozen_at(ddp: DataParallel) -> int | None:
    """The line at which all parameters of the model, or of what it is an entry of, are frozen for good."""
    view, call = ddp.view, ddp.call
    assert ddp.plan.model is not None
    statement = view.statement(call)
    targets = statement.targets if isinstance(statement, ast.Assign) and statement.value is call else []
    named = {view.text(node) for node in [ddp.plan.model, *targets, *collections_of(view, call, ddp.plan.model)]}
    settings = [(view.text(owner), value, node) for owner, value, node in _settings(view) if view.text(owner) in named]
    if any(not isinstance(value, ast.Constant) or value.value is not False for _, value, _ in settings):
        return None
    for name, _, node in settings:
        is_shared = name.startswith("self.") and view.enclosing_class(node) is view.enclosing_class(call)
        if (is_shared or view.function(node) is view.function(call)) and (
            ddp.migration.order.relation((view, call), (view, node)) == "before"
        ):
            return view.line(node)
    return None


def _settings(view: FileView) -> Iterator[tuple[ast.expr, ast.expr, ast.AST]]:
    """``requires_grad`` of everything below a module: the module, what it is set to, and where."""
    for loop in view.nodes(ast.For):
        called = loop.iter.func if isinstance(loop.iter, ast.Call) else None
        if isinstance(called, ast.Attribute) and called.attr == "parameters":
            for statement in loop.body:
                value = _set_to(statement, view.text(loop.target))
                if value is not None:
                    yield called.value, value, loop
    for call in view.nodes(ast.Call):
        if isinstance(call.func, ast.Attribute) and call.func.attr == "requires_grad_":
            yield call.func.value, call.args[0] if call.args else ast.Constant(True), call


def _set_to(statement: ast.stmt, parameter: str) -> ast.expr | None:
    """``False`` of ``p.requires_grad = False`` or ``p.requires_grad_(False)``."""
    if isinstance(statement, ast.Assign) and ast.unparse(statement.targets[0]) == f"{parameter}.requires_grad":
        return statement.value
    call = statement.value if isinstance(statement, ast.Expr) else None
    if isinstance(call, ast.Call) and ast.unparse(call.func) == f"{parameter}.requires_grad_":
        return call.args[0] if call.args else ast.Constant(True)
    return None
