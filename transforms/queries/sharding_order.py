"""What surely comes before ``fully_shard``, and what surely comes after it."""

from __future__ import annotations

import ast
from collections.abc import Sequence

from .before_wraps import BeforeWraps
from .file import File
from .program import Program
from .programs import Programs
from .sharded_models import ShardCalls
from .textual_order import precedes

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
            return not _share_loop(file, node, [call.node for call in calls])
        places = self._places(calls).get(file.function(node) or file.tree, [])
        if places and all(precedes(file, node, place) for place in places) and not _share_loop(file, node, places):
            if any(_is_given_what(place, file.statement(node)) for place in places):
                return True
        if calls not in self._before:
            self._before[calls] = BeforeWraps(self.program, self.programs, [((call.file, call.node), None) for call in calls])
        return self._before[calls].holds(file, node)

    def is_after(self, file: File, node: ast.AST, calls: ShardCalls, model: ast.expr | None = None) -> bool:
        """Whether one of these calls surely has been made, where it is made at all, when a place is reached.

        For a ``model`` that is bound anew in between, it has to be one behind that.
        """
        return self._is_after(file, node, calls, set(), model)

    def _is_after(
        self, file: File, node: ast.AST, calls: ShardCalls, asked: set[ast.AST], model: ast.expr | None = None
    ) -> bool:
        function = file.function(node)
        scope = function or file.tree
        in_front = [place for place in self._places(calls).get(scope, ()) if precedes(file, place, node)]
        if in_front:
            return model is None or not all(_is_bound_between(file, place, node, model) for place in in_front)
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


def _is_bound_between(file: File, place: ast.AST, node: ast.AST, model: ast.expr) -> bool:
    """Whether a name, or what an attribute is read off, stands for something else at a node than where a place in front is."""
    part: ast.expr | None = model
    while isinstance(part, (ast.Name, ast.Attribute)):
        for bound in file.bindings.get(ast.unparse(part), ()):
            if precedes(file, place, bound) and precedes(file, bound, node):
                return True
        part = part.value if isinstance(part, ast.Attribute) else None
    return False


def _share_loop(file: File, node: ast.AST, places: Sequence[ast.AST]) -> bool:
    """Whether a place comes again after one of these places, in another round of a loop."""
    around = {a for a in file.ancestors(node) if isinstance(a, _LOOPS)}
    return any(a in around for place in places for a in file.ancestors(place))


def _is_given_what(place: ast.AST, statement: ast.stmt) -> bool:
    """Whether a call is given a name or an attribute that a statement works with."""
    given = [*place.args, *(keyword.value for keyword in place.keywords)] if isinstance(place, ast.Call) else []
    used = {ast.unparse(node) for node in ast.walk(statement) if isinstance(node, (ast.Name, ast.Attribute))}
    return any(isinstance(part, (ast.Name, ast.Attribute)) and ast.unparse(part) in used for part in given)
