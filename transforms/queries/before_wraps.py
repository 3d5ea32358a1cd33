"""Places that surely run before anything in the repository is wrapped: every model is plain there, wherever it comes from.

The order of execution is read off the text: from the entry points through all calls that lead to a place. A way that is
not seen whole (a function that is handed on, called by its name, or run by a class of somebody else) proves nothing.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable
from functools import cached_property
from pathlib import PurePosixPath

from ..facts.facts import NOTHING
from ..flow.values import FunctionValue, Wrapped
from .file import File
from .imports_by_name import ImportsByName
from .names_at_run_time import imports_by_name
from .program import Program
from .programs import Programs
from .visible_callers import Place, VisibleCallers, may_be_ours
from .wrap_lifetimes import WrapLifetimes

_LOOPS = (ast.For, ast.AsyncFor, ast.While, ast.comprehension, ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)


class BeforeWraps:
    """Whether places come before all wraps. ``wraps`` are the places where models are wrapped, or wrappers handed on, each with
    what the wrapper's constructor gives there, where it is known.

    A function at whose end nothing is left of what it has wrapped leads to no wrap for those who call it.
    """

    def __init__(self, program: Program, programs: Programs, wraps: Iterable[tuple[Place, Wrapped | None]]) -> None:
        self.program = program
        self.programs = programs
        self._callers = VisibleCallers(program, programs)
        self._lifetimes = WrapLifetimes(program, programs, self._callers)
        self._unordered: set[str] = set()
        """Entry points of programs with a wrap to which no call is seen to lead."""
        self._outlived: set[str] = set()
        """Entry points of programs in which what is wrapped may be there as long as they run."""
        self._started: dict[FunctionValue, list[Place]] = {}
        """Functions that wrap and that code out of sight calls, with the places from which on it may: a program starts there."""
        self._starts: dict[FunctionValue, bool] = {}
        self._apart: dict[FunctionValue, bool] = {}
        self._wrapping = self._spread(wraps)
        self._with_wraps = set[int]().union(*(programs.reaching(index) for index, _ in self._wrapping))
        """Files that import, in however many steps, one that may wrap something."""

    def holds(self, file: File, node: ast.AST) -> bool:
        """Whether a place is surely reached only while nothing is wrapped yet."""
        return bool(self._wrapping) and self.is_ordered(file) and self._is_before(file, node)

    def wraps_in(self, file: File, place: ast.AST) -> list[ast.AST]:
        """The places in the function around a place (or at module level) that may wrap something."""
        return self._wrapping.get((file.index, self._function(file, place)), [])

    def callers(self, file: File, place: ast.AST) -> list[Place] | None:
        """Every place that may call the function around a place; None where there may be others."""
        function = self._function(file, place)
        return self._callers.of(function) if function is not None else None

    def is_ordered(self, file: File) -> bool:
        """Whether it is seen of each wrap in the programs of a file by which calls it is reached."""
        entries = self.programs.of(file.path)
        return self._unordered.isdisjoint(entries) and (not self._found_by_name or self._importing.isdisjoint(entries))

    @cached_property
    def _found_by_name(self) -> bool:
        """Whether imports by name may bring a wrap to which no call is seen to lead."""
        return any(map(self.program.once(ImportsByName).may_find, self._unordered))

    @cached_property
    def _importing(self) -> set[str]:
        """The entry points of programs that import by names which are put together at run time."""
        paths = [facts.path for facts in self.program.facts]
        by_name = (path for path in paths if imports_by_name(self.program, self.program.text(path)))
        return {entry for path in by_name for entry in self.programs.of(path)}

    def may_be_ours(self, file: File, call: ast.Call) -> bool:
        """Whether a call may reach a function of the repository that the analysis does not see."""
        if self.program.callees(file, call) or not isinstance(call.func, (ast.Name, ast.Attribute)):
            return not self.program.callees(file, call)
        return may_be_ours(file, call.func)

    def _spread(
        self, wraps: Iterable[tuple[Place, Wrapped | None]]
    ) -> dict[tuple[int, FunctionValue | None], list[ast.AST]]:
        """For each function (None for module level) the places in it that may wrap something, in however many steps."""
        found: dict[tuple[int, FunctionValue | None], list[ast.AST]] = {}
        passed: set[tuple[ast.AST, Wrapped | None]] = set()
        pending = list(wraps)
        while pending:
            (file, node), wrapped = pending.pop()
            function = self._function(file, node)
            known = found.setdefault((file.index, function), [])
            if not any(node is other for other in known):
                known.append(node)
            way = (file.function(node) or node, wrapped)
            if function is None:
                self._outlived |= set(self.programs.of(file.path))
            if function is None or way in passed:
                continue
            passed.add(way)
            if wrapped is not None and self._lifetimes.end_with(function, wrapped):
                continue
            callers = self._callers.of(function)
            if not callers:
                callers = self._started[function] = self._callers.places_that_let_call(function)
            if not callers:
                self._unordered |= set(self.programs.of(file.path))
                self._outlived |= set(self.programs.of(file.path))
            pending += ((caller, wrapped) for caller in callers)
        return found

    def _function(self, file: File, node: ast.AST) -> FunctionValue | None:
        """The function around a place; a made-up one, which nothing calls, where the analysis knows none."""
        around = file.function(node)
        if around is None:
            return None
        return next((v for v in file.values(around) if isinstance(v, FunctionValue)), FunctionValue(file.index, NOTHING))

    def _is_before(self, file: File, node: ast.AST) -> bool:
        function = self._function(file, node)
        if self._is_apart(file) or _starts_process(file, node) or (function is not None and self._comes_from_apart(function)):
            return True
        around = list(file.ancestors(node))
        if file.function(node) in around:
            around = around[: around.index(file.function(node))]  # type: ignore[arg-type]
        loops = [a for a in around if isinstance(a, _LOOPS)]
        for wrap in self._wrapping.get((file.index, function), ()):
            above = list(file.ancestors(wrap))
            if node in above or any(loop in loops for loop in above):
                return False
            if wrap is not node and wrap not in around and _position(wrap) < _position(node):
                return False
        if function is None:
            return self._is_run_first(file)
        if function not in self._starts:
            known = list(self._starts)
            self._starts[function] = True  # a call of itself is no other way to it
            if not self._starts_before(function):
                self._starts = {one: self._starts[one] for one in known} | {function: False}  # the others built on this one
        return self._starts[function]

    def _is_apart(self, file: File) -> bool:
        """Whether nothing imports both a file and one that may wrap something."""
        is_found = self._are_wraps_found or self.program.once(ImportsByName).may_find(file.path)
        return not is_found and self._with_wraps.isdisjoint(self.programs.reaching(file.index))

    @cached_property
    def _are_wraps_found(self) -> bool:
        """Whether imports by name may bring a wrap together with what no import statement does."""
        found = {self.program.facts[index].path for index, _ in self._wrapping}
        return any(map(self.program.once(ImportsByName).may_find, found))

    def _comes_from_apart(self, function: FunctionValue) -> bool:
        """Whether nothing calls a function but code that is apart from all wraps, or code that nothing calls."""
        if function not in self._apart:
            known = list(self._apart)
            self._apart[function] = True  # a call of itself is no other way to it
            callers = self._callers.of(function)
            around = [(file, self._function(file, node)) for file, node in callers or ()]
            is_so = bool(callers) or (callers == [] and self._callers.is_never_named(function))
            is_so = is_so and (function.file, function) not in self._wrapping
            is_so = is_so and all(self._is_apart(file) or (f is not None and self._comes_from_apart(f)) for file, f in around)
            if not is_so:
                self._apart = {one: self._apart[one] for one in known} | {function: False}  # the others built on this one
        return self._apart[function]

    def _is_run_first(self, file: File) -> bool:
        """Whether a file is an entry point, and imports none that wraps something when it is imported."""
        wrapping = (
            (self.program.file(self.program.facts[i].path), places)
            for (i, function), places in self._wrapping.items()
            if function is None and i != file.index
        )
        others = (other.path for other, places in wrapping if any(_runs_on_import(other, place) for place in places))
        return file.index in self.programs.entries and not any(file.path in self.programs.of(path) for path in others)

    def _starts_before(self, function: FunctionValue) -> bool:
        if function.index == NOTHING or _is_lazy(self.program.function_node(function)[1]):
            return False
        callers, facts = self._callers.of(function), self.program.facts[function.file]
        if callers == [] and _is_named_as_test(facts.path, facts.functions[function.index].name):
            return True  # what other tests wrap are models of their own
        if callers == [] and self._callers.is_for_outside(function):
            return self._outlived.isdisjoint(self.programs.of(self.program.facts[function.file].path))
        callers = callers or self._started.get(function)
        return bool(callers) and all(self._is_before(*caller) for caller in callers)


def _is_named_as_test(path: str, function: str) -> bool:
    """Whether pytest collects a function."""
    name = PurePosixPath(path).name
    return function.startswith("test_") and (name.startswith("test_") or name.endswith("_test.py"))


def _runs_on_import(file: File, place: ast.AST) -> bool:
    """Whether a place at module level is reached when the file is imported, and not only when it is run."""
    return not any(isinstance(around, ast.If) and "__main__" in ast.unparse(around.test) for around in file.ancestors(place))


def _starts_process(file: File, node: ast.AST) -> bool:
    """Whether a place, or what a function is handed to there, starts a process: ``Process(target=main)``. Nothing is wrapped
    in that yet."""
    around = file.parents.get(node)
    call = file.parents.get(around) if isinstance(around, ast.keyword) else around
    started = [one for one in (node, call) if isinstance(one, ast.Call) and node is not one.func]
    return any((file.external(one.func) or "").startswith(("multiprocessing.", "torch.multiprocessing.")) for one in started)


def _position(node: ast.AST) -> tuple[int, int]:
    return node.lineno, node.col_offset  # type: ignore[attr-defined]


def _is_lazy(function: ast.AST) -> bool:
    """Whether a function's body runs at another time than its call: a generator, a coroutine."""
    if isinstance(function, ast.AsyncFunctionDef):
        return True
    return any(isinstance(node, (ast.Yield, ast.YieldFrom)) for node in ast.walk(function))
