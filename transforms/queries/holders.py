"""Which objects hold which others, as attributes or elements, and which of them hold sharded models."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property

from ..flow.flow import Flow
from ..flow.values import Container, Instance, Opaque, Value


class Holders:
    """Answers for values of a solved flow; ``is_sharded`` says of one by itself whether it is a sharded model."""

    def __init__(self, flow: Flow, is_sharded: Callable[[Value], bool]) -> None:
        self.flow = flow
        self._is_sharded = is_sharded

    @cached_property
    def parts(self) -> dict[int, list[int]]:
        """The variables of each object's attributes, or elements."""
        parts: dict[int, list[int]] = {}
        for (owner, name), variable in list(self.flow.fields.items()):
            if name != "module":
                parts.setdefault(owner, []).append(variable)
        return parts

    def holds_sharded(self, value: Value) -> bool:
        """Whether a model that is sharded is known to be part of an object."""
        return self.flow.ids.get(value) in self._holders_of_sharded

    @cached_property
    def _holders_of_sharded(self) -> set[int]:
        """The objects that hold a sharded model at any depth, by number: found once for all, from the models outwards."""
        flow = self.flow
        numbers = [flow.ids[value] for value in flow.values]  # where values were exchanged, several places stand for one
        owners: dict[int, list[int]] = {}
        for owner, variables in self.parts.items():
            for part in {numbers[part] for variable in variables for part in flow.points_to[variable] or ()}:
                owners.setdefault(part, []).append(owner)
        holders: set[int] = set()
        pending = [number for value, number in flow.ids.items() if self._is_sharded(value)]
        while pending:
            for owner in owners.get(pending.pop(), ()):
                if owner not in holders:
                    holders.add(owner)
                    if isinstance(flow.values[owner], (Instance, Opaque, Container)):
                        pending.append(owner)
        return holders
