"""Tests that may tell whether a model is sharded at all: code for one device, DDP and FSDP2 often stands side by side."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from .conditions import is_rank_condition
from .file import File
from .program import Program
from .sharded_models import ShardCalls

_TELLS = re.compile(
    r"(?i)fsdp|ddp|shard|parallel|distributed|world_?size|strategy|isinstance|issubclass|hasattr|getattr|type\(|n_?gpus|num_?gpus"
    r"|single|mesh|dtensor|is_initialized|is_available|wrap|backend|mode\b|deepspeed|accelerat|zero|nproc|device_count|\bdp_"
)
_DEEPEST = 3

Mode = tuple[str, bool]
"""A test, and whether it holds."""


class ShardingModes:
    """The tests that lead to places, in their functions and in those that call them."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self._of_functions: dict[ast.AST, frozenset[Mode]] = {}

    def agree(self, file: File, node: ast.AST, calls: ShardCalls) -> bool:
        """Whether no test on the way to a place may say that these calls of ``fully_shard`` were not made."""
        wanted = self.of(file, node)
        if not wanted:
            return True
        met = {mode for call in calls for mode in self.of(call.file, call.node)}
        return wanted <= met

    def of(self, file: File, node: ast.AST, depth: int = 0) -> frozenset[Mode]:
        """The tests on all ways to a place that may tell whether anything is sharded."""
        found = {mode for mode, is_try in _own(file, node) if not (is_try and depth)}
        function = file.function(node)
        if function is not None and depth < _DEEPEST:
            if function not in self._of_functions:
                self._of_functions[function] = frozenset()
                callers = self.program.callers(file, function)
                ways = [self.of(caller, call, depth + 1) for caller, call in callers]
                self._of_functions[function] = frozenset().union(*ways)
            found |= self._of_functions[function]
        return frozenset(found)


def _own(file: File, node: ast.AST) -> Iterator[tuple[Mode, bool]]:
    """The tests around a place in its function, and whether it is what may raise that tells: that says nothing of callers."""
    found: list[Mode] = []
    inside = node
    for around in file.ancestors(node):
        if isinstance(around, (ast.If, ast.IfExp, ast.While)) and inside is not around.test:
            orelse = around.orelse if isinstance(around.orelse, list) else [around.orelse]
            found += _mode(file, around.test, not any(inside is part for part in orelse))
        elif isinstance(around, ast.BoolOp) and inside in around.values:
            for part in around.values[: around.values.index(inside)]:  # type: ignore[arg-type]
                found += _mode(file, part, isinstance(around.op, ast.And))
        elif isinstance(around, (ast.comprehension, ast.ListComp, ast.GeneratorExp)):
            tests = [t for g in getattr(around, "generators", ()) for t in g.ifs if inside is not g]
            found += [mode for test in tests for mode in _mode(file, test, True)]
        elif isinstance(around, ast.match_case):
            found.append(("match_case", True))
        elif isinstance(around, ast.Try) and around.handlers:
            yield (f"try at {file.path}:{around.lineno}", True), True
        if isinstance(inside, ast.stmt):
            found += _left_by(file, inside)
        if isinstance(around, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
            break
        inside = around
    yield from ((mode, False) for mode in found)


def _left_by(file: File, statement: ast.stmt) -> list[Mode]:
    """Tests in front of a statement by which its block is left."""
    try:
        block, index = file.block_of(statement)
    except (ValueError, KeyError):
        return []
    found: list[Mode] = []
    for earlier in block[:index]:
        if isinstance(earlier, ast.If) and not earlier.orelse and isinstance(earlier.body[-1], (ast.Return, ast.Continue)):
            found += _mode(file, earlier.test, False)
    return found


def _mode(file: File, test: ast.expr, holds: bool) -> list[Mode]:
    while isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        test, holds = test.operand, not holds
    if isinstance(test, ast.BoolOp) and isinstance(test.op, ast.And if holds else ast.Or):
        return [mode for part in test.values for mode in _mode(file, part, holds)]
    text = ast.unparse(test)
    if _TELLS.search(text) is None or is_rank_condition(file, test):
        return []
    return [(text, holds)]
