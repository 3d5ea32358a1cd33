"""Branches that exclude each wrap: `if args.horovod:` beside a wrap under `if not args.horovod:`. Models are plain there."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable

from ..flow.values import FunctionValue
from .arguments import given_for_parameter
from .file import File
from .known_conditions import negated, tests_in_front
from .program import Program
from .programs import Programs
from .visible_callers import VisibleCallers

_DEEPEST = 5
Place = tuple[File, ast.AST]


class ExclusiveBranches:
    """Which places are reached only where the tests around each wrap, or around the only call that leads there, do not hold.

    What is tested has to be an attribute of one and the same object, such as parsed arguments, that nothing changes once
    something may be wrapped; ``is_before`` says of a place whether it surely is in front of all wraps.
    """

    def __init__(
        self, program: Program, programs: Programs, wraps: Iterable[Place], is_before: Callable[[File, ast.AST], bool]
    ) -> None:
        self.program = program
        self.programs = programs
        self._is_before = is_before
        self._callers = VisibleCallers(program, programs)
        self._wraps = [(file, self._leading(file, node)) for file, node in wraps]
        self._attributes = {part.attr for _, parts in self._wraps for _, test in parts.values() for part in _attributes(test)}
        self._settled: dict[str, bool] = {}

    def holds(self, file: File, node: ast.AST) -> bool:
        """Whether a place is reached only where no wrap of its programs is made."""
        if not self._attributes or not any(attribute in file.source.text for attribute in self._attributes):
            return False
        own = [test for test in _conditions(file, node).values() if any(a.attr in self._attributes for a in _attributes(test))]
        if not own:
            return False
        near = set(self.programs.sharing_entries(file.path))
        wraps = [parts for other, parts in self._wraps if other.path in near]
        return bool(wraps) and all(any(self._excludes(file, test, parts) for test in own) for parts in wraps)

    def _leading(self, file: File, node: ast.AST, depth: int = 0) -> dict[str, tuple[File, ast.expr]]:
        """What holds at a place, also by tests around the only call of its function, by its dump and with the test's file."""
        found = {dump: (file, test) for dump, test in _conditions(file, node).items()}
        around = file.function(node)
        function = next((v for v in file.values(around) if isinstance(v, FunctionValue)), None) if around is not None else None
        callers = self._callers.of(function) if function is not None and depth < _DEEPEST else None
        return (self._leading(*callers[0], depth + 1) if callers and len(callers) == 1 else {}) | found

    def _excludes(self, file: File, test: ast.expr, parts: dict[str, tuple[File, ast.expr]]) -> bool:
        other, opposite = parts.get(ast.dump(negated(test)), (file, None))
        return opposite is not None and all(
            self._is_settled(mine.attr) and _is_same_object(file, mine, other, theirs)
            for mine, theirs in zip(_attributes(test), _attributes(opposite), strict=True)
        )

    def _is_settled(self, attribute: str) -> bool:
        if attribute not in self._settled:
            files = map(self.program.file, self.program.files_that_store(attribute))
            named = ((f, n) for f in files for n in f.nodes(ast.Attribute) if n.attr == attribute)
            self._settled[attribute] = all(self._is_before(f, n) for f, n in named if isinstance(n.ctx, ast.Store))
        return self._settled[attribute]


def _conditions(file: File, node: ast.AST) -> dict[str, ast.expr]:
    """What holds at a place by tests of attributes alone, by its dump."""
    found = [part for _, part in tests_in_front(file, node)]
    return {ast.dump(part): part for part in found if _attributes(part) and not _asks_more(part)}


def _attributes(test: ast.expr) -> list[ast.Attribute]:
    return [n for n in ast.walk(test) if isinstance(n, ast.Attribute)]


def _asks_more(test: ast.expr) -> bool:
    """Whether a test calls something, or asks for a variable by itself."""
    inside = {n.value for n in _attributes(test)}
    return any(isinstance(n, ast.Call) or (isinstance(n, ast.Name) and n not in inside) for n in ast.walk(test))


def _is_same_object(file: File, mine: ast.Attribute, other: File, theirs: ast.Attribute) -> bool:
    """Whether attributes are read off one object: by its name where it was made, from where it was handed on."""
    made = _made_at(file, mine.value)
    return len(made) == 1 and made == _made_at(other, theirs.value)


def _made_at(file: File, node: ast.expr, depth: int = 0) -> set[tuple[ast.AST | None, str]]:
    """The variables that a name stands for, each with its function: its own one, or those that callers hand in."""
    if not isinstance(node, ast.Name):
        return set()
    given = list(given_for_parameter(file, node)) if depth < _DEEPEST else []
    if any(file.function(binding) is file.function(node) for binding in file.bindings.get(node.id, ())) or not given:
        return {(file.function(node) or file.tree, node.id)}
    return {place for caller, value in given for place in _made_at(caller, value, depth + 1)}
