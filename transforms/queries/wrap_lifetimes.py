"""How long a wrapped model lives: one that is made, wrapped and dropped in a call of a function is gone when the call ends."""

from __future__ import annotations

import ast
from collections import defaultdict
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
        flow, kept = self.program.flow, self._kept[wrapped]
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
        """Where names and expressions stand that may hold each of these models."""
        flow = self.program.flow
        wanted = frozenset[int]().union(*self._kept.values())
        variables: defaultdict[int, set[int]] = defaultdict(set)
        fields = set(flow.fields.values())
        for variable, held in enumerate(flow.points_to):
            if held and variable not in fields and not wanted.isdisjoint(held):
                for number in wanted & held:
                    variables[number].add(flow.variable_in_text(variable))
        return {w: self._scopes_of(set[int]().union(*(variables[n] for n in numbers))) for w, numbers in self._kept.items()}

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
        kept: set[int] = set()
        pending: list[Value] = [wrapped, *models]
        while pending:
            value = pending.pop()
            number = flow.ids[value]
            if isinstance(value, (ClassValue, ModuleValue)) or _is_unknown(value) or getattr(value, "site", 0) < 0:
                return None
            if number not in kept:
                kept.add(number)
                pending += self._owners.get(number, ())
        return kept

    @cached_property
    def _owners(self) -> dict[int, list[Value]]:
        """What each value is an attribute or an element of, or the object of."""
        flow = self.program.flow
        found: defaultdict[int, list[Value]] = defaultdict(list)
        for (owner, _), variable in flow.fields.items():
            for number in flow.points_to[variable] or ():
                found[number].append(flow.values[owner])
        for value in flow.values:
            if isinstance(value, Bound) and (receiver := flow.ids.get(value.receiver)) is not None:  # type: ignore[call-overload]
                found[receiver].append(value)
        return found


def _is_unknown(value: Value) -> bool:
    """Whether a value is whatever code out of sight hands in or gives."""
    return isinstance(value, Unknown) or (isinstance(value, Opaque) and value.name == "?")
