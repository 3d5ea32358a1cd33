"""Sharded models that torch.compile may have wrapped: the compiled one shows attributes of what is in it, with other keys."""

from __future__ import annotations

import ast
from functools import cached_property

from ..flow.values import Value, Wrapped
from .program import Program


class CompiledModels:
    """The wrapped models that come to ``torch.compile``."""

    def __init__(self, program: Program) -> None:
        self.program = program

    def may_hold(self, values: list[Value]) -> bool:
        """Whether one of these values may be a compiled model that holds a wrapped one."""
        return any(isinstance(value, Wrapped) and value in self._given for value in values)

    @cached_property
    def _given(self) -> frozenset[Value]:
        files = (file for file in self.program.facts if "compile" in self.program.text(file.path))
        calls = ((file, call) for file in map(self.program.file, (file.path for file in files)) for call in file.nodes(ast.Call))
        return frozenset(
            value for file, call in calls if call.args and file.external(call.func) == "torch.compile"
            for value in file.values(call.args[0]) if isinstance(value, Wrapped)
        )  # fmt: skip
