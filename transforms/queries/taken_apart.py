"""Values that come through code which takes tensors apart itself: it knows of shards, and decides what it hands on."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from .file import File
from .program import Program
from .sharded_models import known_values

_APART = frozenset({"to_local", "full_tensor", "_local_tensor"})


class TakenApart:
    """Whether a function that an expression's value comes through looks into shards."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self._looks: dict[ast.AST, bool] = {}

    def holds(self, file: File, node: ast.expr) -> bool:
        """Whether any call on the lines that a value comes through reaches such a function."""
        places = {(file.path, node.lineno)}
        for value in known_values(file, node):
            places |= {(step.file, step.line) for step in self.program.provenance(file, node, value)}
        return any(self._looks_inside(where, call) for where, call in self._calls(places))

    def _calls(self, places: set[tuple[str, int]]) -> Iterator[tuple[File, ast.Call]]:
        for path, line in places:
            where = self.program.file(path)
            for call in where.nodes(ast.Call):
                if call.lineno <= line <= (call.end_lineno or line):
                    yield where, call

    def _looks_inside(self, file: File, call: ast.Call) -> bool:
        for value in self.program.callees(file, call):
            _, function = self.program.function_node(value)
            if function not in self._looks:
                self._looks[function] = any(isinstance(n, ast.Attribute) and n.attr in _APART for n in ast.walk(function))
            if self._looks[function]:
                return True
        return False
