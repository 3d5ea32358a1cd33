"""Objects that one function makes for several callers: each call gives another one.

The flow analysis has one value for all that a registry or a ``build_model`` makes. Where such a value is followed back
from two places to different calls of the function, they hold different objects.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import cached_property

from ..facts.facts import NOTHING
from ..flow.flow import Flow
from ..flow.values import Value, Wrapped

_MOST_VISITED = 3000


class ObjectOrigins:
    """Answers for variables of a solved flow."""

    def __init__(self, flow: Flow) -> None:
        self.flow = flow
        self._made: dict[int, set[int]] = {}
        self._returned: dict[int, set[int]] = {}
        self._known: dict[tuple[int, int], frozenset[int] | None] = {}

    def may_be_one(self, value: Value, variable: int, others: Iterable[int]) -> bool:
        """Whether a variable and one of the others, which all hold a value, may hold the same object."""
        number = self.flow.ids[value]
        found = self._origins(number, variable)
        if found is None:
            return True
        return any(origins is None or not found.isdisjoint(origins) for origins in (self._origins(number, o) for o in others))

    def comes_through(self, value: Value, variable: int, place: int) -> bool:
        """Whether a variable may have a value from another one, whatever was done with it in between.

        What is either wrapped or left as it is, as by ``return DDP(m) if ranks else m``, was left before as well.
        """
        number = self.flow.ids[value]
        seen, waiting = {variable}, [variable]
        while waiting and len(seen) <= _MOST_VISITED:
            current = waiting.pop()
            if current == place:
                return True
            origins = (before for before in self._predecessors.get(current, ()) if self._holds(number, before))
            new = [before for before in origins if before not in seen and not self._is_wrapped_between(before, current)]
            seen.update(new)
            waiting += new
        return False

    def _is_wrapped_between(self, before: int, behind: int) -> bool:
        """Whether a variable also has wrappers around what another one holds."""
        inside = (self.flow.fields.get((self.flow.ids[v], "module"), NOTHING)
                  for v in self.flow.values_of(behind) if isinstance(v, Wrapped))  # fmt: skip
        return any(before in self._predecessors.get(variable, ()) for variable in inside)

    def _origins(self, number: int, variable: int) -> frozenset[int] | None:
        """The calls, by their results, that a variable has a value from; None if it may be right from where it is made."""
        if (number, variable) not in self._known:
            self._known[number, variable] = self._followed_back(number, variable)
        return self._known[number, variable]

    def _followed_back(self, number: int, variable: int) -> frozenset[int] | None:
        if variable == NOTHING or not self._holds(number, variable):
            return None
        self._find_makers(number)
        made, returned = self._made[number], self._returned[number]
        found: set[int] = set()
        seen, waiting = {variable}, [variable]
        while waiting:
            current = waiting.pop()
            origins = [before for before in self._predecessors.get(current, ()) if self._holds(number, before)]
            if current in made or not origins or len(seen) > _MOST_VISITED:
                return None
            if not returned.isdisjoint(origins):
                found.add(current)
            new = [before for before in origins if before not in returned and before not in seen]
            seen.update(new)
            waiting += new
        return frozenset(found)

    def _find_makers(self, number: int) -> None:
        """Where a value is made, and what functions return that hand it to their callers just as it was made in them."""
        if number in self._made:
            return
        results = self._results.get(getattr(self.flow.values[number], "site", NOTHING), ())
        made = {v for v in results if self._holds(number, v) and not self._comes_from_elsewhere(number, v)}
        seen, waiting, returned = set(made), list(made), set[int]()
        while waiting:
            current = waiting.pop()
            if self.flow.variable_in_text(current) in self._returns:
                returned.add(current)
            for behind in self.flow.copies.get(current, ()):
                if behind not in seen and not self._is_kept(behind) and self._holds(number, behind):
                    seen.add(behind)
                    waiting.append(behind)
        self._made[number], self._returned[number] = made, returned

    def _comes_from_elsewhere(self, number: int, variable: int) -> bool:
        return any(self._holds(number, before) for before in self._predecessors.get(variable, ()))

    def _holds(self, number: int, variable: int) -> bool:
        held = self.flow.points_to[variable]
        return held is not None and number in held

    def _is_kept(self, variable: int) -> bool:
        """Whether a variable is a parameter, or an attribute: what comes in there may come back to its makers' callers."""
        written = self.flow.variable_in_text(variable)
        return written >= self.flow.first_field or written in self._parameters

    @cached_property
    def _predecessors(self) -> dict[int, list[int]]:
        return self.flow.predecessors()

    @cached_property
    def _results(self) -> dict[int, set[int]]:
        """The variables of the results of each call in the text, those in copied bodies among them."""
        found: dict[int, set[int]] = {}
        for site in self.flow.sites():
            for written in {self.flow.written_at(site), self.flow.copied_for(site)}:
                found.setdefault(written, set()).add(self.flow.call_at(site).result)
        return found

    @cached_property
    def _returns(self) -> frozenset[int]:
        return frozenset(function.returns + offset for function, offset in self._functions())

    @cached_property
    def _parameters(self) -> frozenset[int]:
        return frozenset(
            variable + offset for function, offset in self._functions()
            for variable in (*(v for _, v in (*function.positional, *function.keyword_only)), function.variadic)
        )  # fmt: skip

    def _functions(self) -> Iterator[tuple]:
        for file, offset in zip(self.flow.files, self.flow.variable_offsets, strict=True):
            yield from ((function, offset) for function in file.functions)
