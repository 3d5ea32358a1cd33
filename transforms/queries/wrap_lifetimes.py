"""How long a wrapped model lives: one that is made, wrapped and dropped in a call of a function is gone when the call ends."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterable
from functools import cached_property

from ..facts.facts import NOTHING
from ..flow.values import Bound, ClassValue, FunctionValue, Instance, ModuleValue, Opaque, Unknown, Value, Wrapped
from .program import Program
from .programs import Programs
from .visible_callers import VisibleCallers

_MOST_ABOVE = 40

Scope = tuple[int, ast.AST | None]
"""A file and a function in it, or the file's module level."""


class WrapLifetimes:
    """Answers for what wrappers' constructors give, and the functions that lead to them."""

    def __init__(self, program: Program, programs: Programs, callers: VisibleCallers) -> None:
        self.program = program
        self.programs = programs
        self._callers = callers
        self._above: dict[FunctionValue, set[Scope] | None] = {}
        self._for_outside: dict[FunctionValue, list[FunctionValue]] = {}
        """The functions above each one that no call in the repository reaches."""

    def end_with(self, function: FunctionValue, wrapped: Wrapped) -> bool:
        """Whether nothing holds a wrapped model any more when a call of a function ends in which it is wrapped.

        What could hold it is a name of a module, an attribute of something that lives longer, or a function that calls this
        one, in however many steps.
        """
        if function not in self._above:
            self._above[function] = self._functions_above(function)
        holding, above = self._holding.get(wrapped), self._above[function]
        if holding is None or above is None or not holding.isdisjoint(above):
            return False
        if any(self._gives_back(one, wrapped) for one in self._for_outside[function]):
            return False
        sharing = set(self.programs.sharing_entries(self.program.facts[function.file].path))
        return not any(scope is None and self.program.facts[index].path in sharing for index, scope in holding)

    def _functions_above(self, function: FunctionValue) -> set[Scope] | None:
        """All functions from which calls lead to one; None where that is not seen, or where the function calls itself."""
        found: set[Scope] = set()
        pending, known = [function], {function}
        for_outside = self._for_outside[function] = []
        while pending:
            called = pending.pop()
            callers = self._callers.of(called)
            if callers is None or len(known) > _MOST_ABOVE:
                return None
            if not callers:
                for_outside.append(called)
            for file, place in callers:
                around = file.function(place)
                caller = next((v for v in file.values(around) if isinstance(v, FunctionValue)), None) if around else None
                if caller == function or (around is not None and caller is None):
                    return None
                found.add((file.index, around))
                if caller is not None and caller not in known:
                    known.add(caller)
                    pending.append(caller)
        return found

    def _gives_back(self, function: FunctionValue, wrapped: Wrapped) -> bool:
        """Whether a function may return a wrapped model, or what holds it."""
        flow, kept = self.program.flow, self._with_closures[wrapped]
        returned = self.program.facts[function.file].functions[function.index].returns
        held = flow.points_to[returned + flow.variable_offsets[function.file]] if returned != NOTHING else None
        return bool(held) and not kept.isdisjoint(held)

    @cached_property
    def _kept(self) -> dict[Wrapped, set[int]]:
        """For each wrapped model the numbers of all values that it may live as long as; without those where that is not seen."""
        flow = self.program.flow
        kept = {wrapped: numbers for wrapped in self.program.wraps if (numbers := self._kept_with(wrapped)) is not None}
        wanted = frozenset[int]().union(*kept.values())
        for base, stored in flow.stores.items():
            held = frozenset[int]().union(*(flow.points_to[origin] or () for _, origin in stored)) & wanted
            if held and not self._is_known(base):
                kept = {wrapped: numbers for wrapped, numbers in kept.items() if numbers.isdisjoint(held)}
        return kept

    def _is_known(self, variable: int) -> bool:
        """Whether all that a variable may hold is known."""
        values = self.program.flow.values_of(variable)
        return bool(values) and not any(map(_is_unknown, values))

    @cached_property
    def _holding(self) -> dict[Wrapped, set[Scope]]:
        """Where names and expressions stand that may hold each wrapped model; without those that are there for good."""
        return self._scopes(self._with_closures)

    @cached_property
    def _with_closures(self) -> dict[Wrapped, set[int]]:
        """The same as ``_kept``, with the functions inside of others that may hold a model."""
        holding = self._scopes(self._kept)
        found = {wrapped: numbers | self._closures(holding[wrapped]) for wrapped, numbers in self._kept.items()}
        return {wrapped: numbers for wrapped, numbers in found.items() if not self._outlives(numbers)}

    def _closures(self, scopes: set[Scope]) -> set[int]:
        """The numbers of functions inside of others that may hold a model, as long as somebody holds them."""
        flow = self.program.flow
        inner = [(self.program.file(index), scope) for index, scope in scopes if scope is not None]
        values = (v for file, scope in inner if file.function(scope) is not None for v in file.values(scope))
        return self._with_owners(v for v in values if isinstance(v, FunctionValue) and v in flow.ids)

    def _scopes(self, kept: dict[Wrapped, set[int]]) -> dict[Wrapped, set[Scope]]:
        flow, wanted = self.program.flow, frozenset[int]().union(*kept.values())
        variables: defaultdict[int, set[int]] = defaultdict(set)
        fields = set(flow.fields.values())
        for variable, held in enumerate(flow.points_to):
            if held and variable not in fields and not wanted.isdisjoint(held):
                for number in wanted & held:
                    variables[number].add(flow.variable_in_text(variable))
        return {w: self._scopes_of(set[int]().union(*(variables[n] for n in numbers))) for w, numbers in kept.items()}

    def _scopes_of(self, variables: set[int]) -> set[Scope]:
        by_file: defaultdict[int, set[int]] = defaultdict(set)
        for variable in variables:
            if (index := self.program.file_of_variable(variable)) is not None:
                by_file[index].add(variable)
        found: set[Scope] = set()
        for index, held in by_file.items():
            file, offset = self.program.file(index), self.program.flow.variable_offsets[index]
            found |= {(index, file.function(node)) for node in file.nodes_of(held)}
            if any(variable + offset in held for variable in self.program.facts[index].names.values()):
                found.add((index, None))
        return found

    def _kept_with(self, wrapped: Wrapped) -> set[int] | None:
        """The numbers of a wrapped model, of what is in the wrapper and of all that may hold one of these, at any depth."""
        flow = self.program.flow
        inside = flow.values_of(flow.fields.get((flow.ids[wrapped], "module"), NOTHING))
        models = [value for value in inside if isinstance(value, (Instance, Opaque)) and value.site >= 0]
        if wrapped.site < 0 or not models or any(map(_is_unknown, inside)):
            return None
        kept = self._with_owners([wrapped, *models])
        return None if self._outlives(kept) else kept

    def _with_owners(self, values: Iterable[Value]) -> set[int]:
        """The numbers of values and of all that may hold them, at any depth."""
        found: set[int] = set()
        pending = [self.program.flow.ids[value] for value in values]
        while pending:
            number = pending.pop()
            if number not in found:
                found.add(number)
                pending += self._owners.get(number, ())
        return found

    def _outlives(self, numbers: set[int]) -> bool:
        """Whether one of these values is there for good, or may be held by somebody out of sight."""
        values = [self.program.flow.values[number] for number in numbers]
        return any(isinstance(v, (ClassValue, ModuleValue)) or _is_unknown(v) or getattr(v, "site", 0) < 0 for v in values)

    @cached_property
    def _owners(self) -> dict[int, list[int]]:
        """What each value is an attribute or an element of, or the object of."""
        flow = self.program.flow
        found: defaultdict[int, list[int]] = defaultdict(list)
        for (owner, _), variable in flow.fields.items():
            for number in flow.points_to[variable] or ():
                found[number].append(owner)
        for value in flow.values:
            if isinstance(value, Bound) and (receiver := flow.ids.get(value.receiver)) is not None:  # type: ignore[call-overload]
                found[receiver].append(flow.ids[value])
        return found


def _is_unknown(value: Value) -> bool:
    """Whether a value is whatever code out of sight hands in or gives."""
    return isinstance(value, Unknown) or (isinstance(value, Opaque) and value.name == "?")
