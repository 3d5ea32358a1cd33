"""Functions that give back what a class makes which nothing shows: ``getattr(module, config["type"])(**arguments)``."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from ..facts.facts import NOTHING
from .relays import Relays
from .values import FunctionValue

_MAKES = re.compile(r"(?i)^(build|create|make|from|construct|instantiate|load|init)(_|$)")
_MOST_VISITED = 500


class Factories:
    """Answers for variables that hold nothing; ``origins`` are those that a variable is copied from."""

    def __init__(self, flow: Relays, origins: Mapping[int, Sequence[int]]) -> None:
        self.flow = flow
        self.origins = origins
        self.loaded = {to for reads in flow.loads.values() for to, _ in reads}
        self.calls = {call.result: call for call in map(flow.call_at, flow.sites()) if call.result != NOTHING}
        self.returns: dict[int, FunctionValue] = {}
        self.parameters: dict[int, FunctionValue] = {}
        for number, (file, offset) in enumerate(zip(flow.files, flow.variable_offsets, strict=True)):
            for index, function in enumerate(file.functions):
                self.returns[function.returns + offset] = FunctionValue(number, index)
                for _, variable in (*function.positional, *function.keyword_only):
                    self.parameters[variable + offset] = FunctionValue(number, index)
        self._made: dict[int, frozenset[int]] = {}

    def that_gave(self, variable: int) -> FunctionValue | None:
        """The factory that a variable has the result of."""
        for origin in self.origins.get(variable, ()) if variable in self.calls else ():
            function = self.returns.get(self.flow.variable_in_text(origin))
            if function is not None and self.made_inside(variable):
                return function
        return None

    def made_inside(self, variable: int) -> frozenset[int]:
        """The results of the calls in a factory that make what a variable has, each time another object.

        Empty where it may be what the function is handed, or what is kept somewhere.
        """
        if variable not in self._made:
            self._made[variable] = self._followed_back(variable)
        return self._made[variable]

    def _followed_back(self, variable: int) -> frozenset[int]:
        found: set[int] = set()
        pending = list(self.origins.get(variable, ()))
        functions = {self.returns.get(self.flow.variable_in_text(origin)) for origin in pending}
        seen = set(pending)
        while pending:
            current = pending.pop()
            owner = self.parameters.get(self.flow.variable_in_text(current))
            further = self.origins.get(current, ())
            is_handed_in = owner is not None and (owner in functions or not further)
            if is_handed_in or current in self.loaded or len(seen) > _MOST_VISITED:
                return frozenset()
            if not further and current in self.calls:
                method = self.calls[current].method
                if method is not None and not _MAKES.match(method):
                    return frozenset()
                found.add(current)
            pending += [origin for origin in further if origin not in seen]
            seen.update(further)
        return frozenset(found)
