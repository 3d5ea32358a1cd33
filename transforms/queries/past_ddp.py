"""Forwards of what DDP wrapped, past the wrapper: they used each rank's own buffers."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from ..flow.values import ClassValue, Constant
from .answers import Sharding
from .file import File
from .sharding import ShardingQueries
from .unwrapping import comes_unwrapped

LEARNS_APART = "DDP reduced no gradients of what ran past it: each rank stepped on its own; now all step on their average"
WHERE_SAME = "Nothing differs where no optimizer steps on them, or where the program averages them by itself."
"""What is told of runs past DDP through which a model learns."""
_DEEPEST = 4


def runs_past_ddp(file: File, sharding: ShardingQueries) -> Iterator[tuple[ast.Call, Sharding]]:
    """The calls of modules that were handed to DDP and are called themselves, surely not through what DDP gave back."""
    for call in file.nodes(ast.Call):
        found = past_ddp(file, sharding, call)
        if found is not None:
            yield call, found


def runs_through_ddp(file: File, sharding: ShardingQueries, node: ast.AST, depth: int = 0) -> bool:
    """Whether code, or what it calls, may call what DDP gave back: such a forward took the first rank's buffers."""
    for call in (n for n in ast.walk(node) if isinstance(n, ast.Call)):
        if sharding.of_called(file, call).wrapped_in == {"ddp"} and past_ddp(file, sharding, call) is None:
            return True
        called = map(file.program.function_node, file.program.callees(file, call)) if depth < _DEEPEST else ()
        if any(runs_through_ddp(owner, sharding, function, depth + 1) for owner, function in called):
            return True
    return False


def past_ddp(file: File, sharding: ShardingQueries, call: ast.Call) -> Sharding | None:
    """What such a call runs; None of another one, and of one that models make in their own methods."""
    if not isinstance(call.func, (ast.Name, ast.Attribute, ast.Subscript)):
        return None
    values = file.called_values(call)
    if any(isinstance(v, Constant) and v.value is not None for v in values):
        return None  # whatever it is, among other things: nothing says that it is a model
    found = sharding.of_called(file, call)
    if found.wrappers != {"ddp"}:
        return None
    if not (found.in_place or comes_unwrapped(sharding, file, call.func, by_name=False, surely=True)):
        return None
    around = file.enclosing_class(call)
    makes_modules = around is not None and any(
        isinstance(value, ClassValue) and sharding.makes_modules(value) for value in file.values(around)
    )
    return None if makes_modules else found
