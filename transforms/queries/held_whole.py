"""Models that helpers of the tool keep whole: in computations, or in their state dicts."""

from __future__ import annotations

import ast

from .file import File, Function
from .program import Program
from .sharded_models import ShardCalls


class HeldWhole:
    """Which calls of ``fully_shard`` stand beside a call of such a helper, in the same function."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self._helped: dict[tuple[int, str], set[Function | None]] = {}

    def by(self, helper: str, calls: ShardCalls) -> bool:
        """Whether a helper is called where a model may be sharded."""
        return any(call.file.function(call.node) in self._functions(call.file, helper) for call in calls)

    def _functions(self, file: File, helper: str) -> set[Function | None]:
        """The functions of a file that call a helper, None for module level."""
        key = file.index, helper
        if key not in self._helped:
            called = (c for c in file.nodes(ast.Call) if isinstance(c.func, ast.Name) and c.func.id == helper)
            self._helped[key] = {file.function(call) for call in called}
        return self._helped[key]
