"""What surely comes before ``fully_shard``, and what surely comes after it."""

from __future__ import annotations

import ast

from .before_wraps import BeforeWraps
from .file import File
from .program import Program
from .programs import Programs
from .sharded_models import ShardCalls

_LOOPS = (ast.For, ast.AsyncFor, ast.While)
_DEEPEST = 8


class ShardingOrder:
    """The order of places and calls of ``fully_shard``, over all files."""

    def __init__(self, program: Program, programs: Programs) -> None:
        self.program = program
        self.programs = programs
        self._before: dict[ShardCalls, BeforeWraps] = {}
        self._leading: dict[ShardCalls, dict[ast.AST, list[ast.AST]]] = {}

    def is_before(self, file: File, node: ast.AST, calls: ShardCalls) -> bool:
        """Whether a place surely runs only before all of these calls."""
        if all(call.file is file and precedes(file, node, call.node) for call in calls):
            around = {a for a in file.ancestors(node) if isinstance(a, _LOOPS)}
            return not any(a in around for call in calls for a in file.ancestors(call.node))
        if calls not in self._before:
            self._before[calls] = BeforeWraps(self.program, self.programs, [(call.file, call.node) for call in calls])
        return self._before[calls].holds(file, node)

    def is_after(self, file: File, node: ast.AST, calls: ShardCalls) -> bool:
        """Whether one of these calls surely has been made, where it is made at all, when a place is reached."""
        return self._is_after(file, node, calls, set())

    def _is_after(self, file: File, node: ast.AST, calls: ShardCalls, asked: set[ast.AST]) -> bool:
        function = file.function(node)
        scope = function or file.tree
        if any(precedes(file, place, node) for place in self._places(calls).get(scope, ())):
            return True
        if function is None or function in asked or len(asked) > _DEEPEST:
            return False
        asked.add(function)
        if self._is_method_of_one_that_shards(file, function, calls):
            return True
        callers = self.program.callers(file, function)
        return bool(callers) and all(self._is_after(*caller, calls, asked) for caller in callers)

    def _places(self, calls: ShardCalls) -> dict[ast.AST, list[ast.AST]]:
        """For each function (or file) the places in it that shard, in however many steps."""
        if calls not in self._leading:
            found: dict[ast.AST, list[ast.AST]] = {}
            pending: list[tuple[File, ast.AST]] = [(call.file, call.node) for call in calls]
            while pending:
                file, node = pending.pop()
                function = file.function(node)
                known = found.setdefault(function or file.tree, [])
                if node in known:
                    continue
                known.append(node)
                if function is not None and len(known) == 1:
                    pending += self.program.callers(file, function)
            self._leading[calls] = found
        return self._leading[calls]

    def _is_method_of_one_that_shards(self, file: File, function: ast.AST, calls: ShardCalls) -> bool:
        """Whether a function is a method of a class whose constructor shards, and no part of constructing."""
        cls = file.parents.get(function)
        if not isinstance(cls, ast.ClassDef):
            return False
        constructor = next((f for f in cls.body if isinstance(f, ast.FunctionDef) and f.name == "__init__"), None)
        if constructor is None or constructor is function or constructor not in self._places(calls):
            return False
        return not any(file.function(call) is constructor for _, call in self.program.callers(file, function))


def precedes(file: File, first: ast.AST, second: ast.AST) -> bool:
    """Whether a place of a function stands in front of another one of it, not in the other branch of a test."""
    if file.function(first) is not file.function(second) or _start(second) < _end(first):
        return False
    branches = {id(around): branch for around, branch in _branches(file, first)}
    return all(branches.get(id(around), branch) == branch for around, branch in _branches(file, second))


def _branches(file: File, node: ast.AST) -> list[tuple[ast.AST, bool]]:
    """The tests around a place, with the branch that it stands in."""
    found: list[tuple[ast.AST, bool]] = []
    inside = node
    for around in file.ancestors(node):
        if isinstance(around, (ast.If, ast.IfExp)):
            orelse = around.orelse if isinstance(around.orelse, list) else [around.orelse]
            found.append((around, any(inside is part for part in orelse)))
        inside = around
    return found


def _start(node: ast.AST) -> tuple[int, int]:
    return node.lineno, node.col_offset  # type: ignore[attr-defined]


def _end(node: ast.AST) -> tuple[int, int]:
    return node.end_lineno, node.end_col_offset  # type: ignore[attr-defined]
