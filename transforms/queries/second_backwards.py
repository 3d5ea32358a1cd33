"""Backwards that follow another one with no forward in between: DDP reduced the gradients of the first alone."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from .file import File
from .sharding import ShardingQueries

_BETWEEN = frozenset(
    {"zero_grad", "step", "scale", "unscale_", "update", "item", "detach", "append", "mean", "sum", "print", "clip_grad_norm_",
     "clip_grad_value_", "no_sync", "scaler", "values", "items", "float"}
)  # fmt: skip
"""Calls that run no model, by the last part of their names."""


def second_backwards(file: File, sharding: ShardingQueries) -> Iterator[tuple[ast.Call, ast.expr]]:
    """The calls of ``backward()``, each with the model in DDP, of several that its function calls, that ran last before it."""
    for call in file.nodes(ast.Call):
        if getattr(call.func, "attr", "") == "backward" and (model := _model_called(file, sharding, call)) is not None:
            statement = file.statement(call)
            block, index = file.block_of(statement)
            if isinstance(statement, ast.Expr) and _follows_backward(block[:index]):
                yield call, model


def _model_called(file: File, sharding: ShardingQueries, backward: ast.Call) -> ast.expr | None:
    """A model in DDP that the function calls further up."""
    function, found = file.function(backward), None
    for call in file.nodes(ast.Call):
        if file.function(call) is function and call.lineno < backward.lineno and "ddp" in sharding.of_called(file, call).wrappers:
            found = call.func
    return found


def _follows_backward(before: list[ast.stmt]) -> bool:
    """Whether the last that is done before is a backward, but for what runs no model."""
    for statement in reversed(before):
        if not isinstance(statement, (ast.Expr, ast.Assign, ast.AugAssign, ast.AnnAssign, ast.With)):
            return False
        names = {getattr(n.func, "attr", getattr(n.func, "id", "")) for n in ast.walk(statement) if isinstance(n, ast.Call)}
        if "backward" in names:
            return names <= {"backward", *_BETWEEN}
        if not names <= _BETWEEN:
            return False
    return False
