"""Branches that exclude each wrap: `if args.horovod:` beside a wrap under `if not args.horovod:`. Models are plain there."""

from __future__ import annotations

import ast
import copy
from collections.abc import Callable, Iterable

from ..flow.values import FunctionValue, Instance
from .arguments import given_for_parameter
from .file import File
from .known_conditions import negated, parts_that_hold, tests_in_front
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

    def exclude_each_other(self, one: Place, other: Place) -> bool:
        """Whether two places are never both reached."""
        parts = self._leading(*other)
        return any(self._excludes(file, test, parts) for file, test in self._leading(*one).values())

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
    """What holds at a place by tests of attributes alone, by its dump; a property says what it gives."""
    found = [part for _, test in tests_in_front(file, node) for part in _spelled_out(file, test)]
    return {ast.dump(part): part for part in found if _attributes(part) and not _asks_more(part)}


def _spelled_out(file: File, test: ast.expr, depth: int = 0) -> list[ast.expr]:
    """The parts of a condition that holds, with what properties of the repository give in their places."""
    asked = test.operand if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not) else test
    given = _given_by_property(file, asked) if isinstance(asked, ast.Attribute) and depth < _DEEPEST else None
    if given is None:
        return [test]
    return [further for part in parts_that_hold(given, asked is test) for further in _spelled_out(file, part, depth + 1)]


def _given_by_property(file: File, read: ast.Attribute) -> ast.expr | None:
    """What a property of one return gives, with the object that it is read off in the place of ``self``."""
    flow = file.program.flow
    owners = {value.cls for value in file.values(read.value) if isinstance(value, Instance)}
    members = {member for owner in owners for member in flow.members_of(owner, read.attr)}
    if len(members) != 1 or not isinstance(member := members.pop(), FunctionValue):
        return None
    owner, function = file.program.function_node(member)
    if not isinstance(function, ast.FunctionDef):
        return None
    returns = owner.returns_of(function)
    if len(returns) != 1 or returns[0].value is None or len(function.args.args) != 1:
        return None
    return _OfObject(function.args.args[0].arg, read.value).visit(copy.deepcopy(returns[0].value))


class _OfObject(ast.NodeTransformer):
    """Puts an object in the place of a name."""

    def __init__(self, name: str, of: ast.expr) -> None:
        self.name = name
        self.of = of

    def visit_Name(self, node: ast.Name) -> ast.expr:
        return self.of if node.id == self.name else node


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


def _makes_several(file: File, constructor: ast.FunctionDef) -> bool:
    """Whether one function makes several objects of a class, which need not be alike."""
    makers = [(caller.path, caller.function(call)) for caller, call in file.program.callers(file, constructor)]
    return len(set(makers)) < len(makers)


def _made_at(file: File, node: ast.expr, depth: int = 0) -> set[tuple[ast.AST | None, str]]:
    """The variables and attributes that are meant, each with its function: its own one, or those that callers hand in."""
    if isinstance(node, ast.Attribute):
        return {(place, f"{name}.{node.attr}") for place, name in _made_at(file, node.value, depth)}
    if not isinstance(node, ast.Name):
        return set()
    function = file.function(node)
    if isinstance(function, ast.FunctionDef) and function.name == "__init__" and function.args.args:
        if node.id == function.args.args[0].arg:
            return set() if _makes_several(file, function) else {(function, node.id)}
    given = list(given_for_parameter(file, node)) if depth < _DEEPEST else []
    if any(file.function(binding) is file.function(node) for binding in file.bindings.get(node.id, ())) or not given:
        return {(file.function(node) or file.tree, node.id)}
    return {place for caller, value in given for place in _made_at(caller, value, depth + 1)}
