"""A program with what a run of it has shown: the trace's places become variables and calls of the flow."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from typing import cast

from ..facts.facts import NOTHING
from ..flow.observed import Callee, Observations, ObservedFlow
from ..flow.values import Bound, ClassValue, Constant, FunctionValue, Instance, Opaque, Partial, Unknown, Value, Wrapped
from .file import File
from .program import Program
from .trace import Defined, Entered, Expression, Held, Trace

_KNOWN = (FunctionValue, ClassValue, Bound, Partial, Instance, Wrapped)


def observed_program(baseline: Program, trace: Trace) -> Program:
    """The program once more, linked with what the run has shown; ``baseline`` is kept for what did not need the run."""
    observations = _Locator(baseline, trace).observations()
    flow = ObservedFlow(baseline.facts, observations, baseline.paths, baseline.links)
    program = Program(baseline.facts, baseline.source, flow, baseline.paths, baseline.is_said, baseline.links)
    program.baseline, program.trace = baseline, trace
    program.observed_variables = observations.variables(flow)
    return program


class _Locator:
    """Finds the numbers of what a trace names by place. What is not found, or needed no run, is left out."""

    def __init__(self, program: Program, trace: Trace) -> None:
        self.program = program
        self.trace = trace
        self.flow = program.flow
        self._indices = {facts.path: index for index, facts in enumerate(program.facts)}

    def observations(self) -> Observations:
        found = Observations()
        for path in sorted({key[0] for key in self.trace.calls} & set(self._indices)):
            self._take_calls(self.program.file(path), found)
        expressions = {*self.trace.values, *(expression for expression, _, _ in self.trace.passed)}
        nodes: dict[Expression, tuple[File, ast.expr]] = {}
        for path in sorted({expression.file for expression in expressions} & set(self._indices)):
            nodes |= _nodes(self.program.file(path), expressions)
        for expression, held in self.trace.values.items():
            if expression in nodes:
                self._take_values(*nodes[expression], held, found)
        for expression, function, parameter in self.trace.passed:
            variable = self._parameter(function, parameter)
            if expression in nodes and variable is not None and not self.flow.values_of(variable):
                file, node = nodes[expression]
                if file.variable(node) != NOTHING:
                    found.passed.append((file.variable(node), variable))
        return found

    def _take_calls(self, file: File, found: Observations) -> None:
        for call in file.nodes(ast.Call):
            line, column = file.source.position(file.source.span(call)[1])
            site = file.call_site(call)
            entered = self.trace.calls.get((file.path, line, column), ())
            if not entered or site < 0 or any(isinstance(value, _KNOWN) for value in file.called_values(call)):
                continue
            callees = [callee for one in entered if (callee := self._callee(call, one)) is not None]
            if len(callees) == len(entered):
                found.calls[site] = callees

    def _callee(self, call: ast.Call, entered: Entered) -> Callee | None:
        function = self._function(entered.function)
        receiver = self._class(entered.receiver) if entered.receiver is not None else None
        if function is None:
            return None
        named = call.func.attr if isinstance(call.func, ast.Attribute) else ""
        constructs = entered.function.name == "__init__" and named != "__init__"
        return None if constructs and receiver is None else Callee(function, receiver, entered.on_class, constructs)

    def _take_values(self, file: File, node: ast.expr, held: Iterable[Held], found: Observations) -> None:
        """Takes what a variable held, where all of it is explained and it stands for at most one unknown thing."""
        variable = file.variable(node)
        if variable == NOTHING:
            return
        before = self.flow.values_of(variable)
        unknown = [value for value in before if isinstance(value, (Opaque, Unknown))]
        known = [value for value in before if value not in unknown and not isinstance(value, Constant)]
        if len(unknown) > 1 or (known and not unknown):
            return
        values: list[Value] = []
        returned: list[FunctionValue] = []
        for one in held:
            if one.kind == "none":
                continue
            defined = self._function(one.defined) if one.kind in ("function", "returned_by") else self._class(one.defined)
            if one.kind == "other" or defined is None:
                return
            if one.kind == "returned_by":
                returned.append(cast(FunctionValue, defined))
            else:
                values.append(Instance(cast(ClassValue, defined), NOTHING) if one.kind == "instance" else defined)
        if values:
            found.held[variable] = values
            found.known[variable] = frozenset(known)
        if returned:
            found.returned[variable] = returned
        if values or returned:
            found.replaced[variable] = frozenset(unknown)

    def _function(self, defined: Defined | None) -> FunctionValue | None:
        index = self._indices.get(defined.file) if defined is not None else None
        if index is None or defined is None:
            return None
        functions = enumerate(self.program.facts[index].functions)
        found = [n for n, facts in functions if facts.line == defined.line and facts.name == defined.name]
        return FunctionValue(index, found[0]) if len(found) == 1 else None

    def _class(self, defined: Defined | None) -> ClassValue | None:
        index = self._indices.get(defined.file) if defined is not None else None
        if index is None or defined is None:
            return None
        found = [n for n, facts in enumerate(self.program.facts[index].classes) if facts.qualified_name == defined.name]
        return ClassValue(index, found[0]) if len(found) == 1 else None

    def _parameter(self, defined: Defined, name: str) -> int | None:
        function = self._function(defined)
        if function is None:
            return None
        facts = self.program.facts[function.file].functions[function.index]
        variable = dict([*facts.positional, *facts.keyword_only]).get(name)
        return None if variable is None else variable + self.flow.variable_offsets[function.file]


def _nodes(file: File, wanted: Iterable[Expression]) -> Iterator[tuple[Expression, tuple[File, ast.expr]]]:
    """The nodes of a file that a trace names."""
    places = {(one.line, one.column) for one in wanted if one.file == file.path}
    for node in file.nodes(ast.Name, ast.Attribute):
        line, column = file.source.position(file.source.span(node)[0])
        if (line, column) in places:
            yield Expression(file.path, line, column, ast.unparse(node)), (file, cast(ast.expr, node))
