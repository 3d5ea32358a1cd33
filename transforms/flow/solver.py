"""The store of the flow analysis: variables, the values they hold, and the flows between them."""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Sequence
from itertools import pairwise

from ..facts.facts import NOTHING, FileFacts
from ..facts.symbols import is_old
from .modules import ModuleTable
from .values import Annotated, Constant, Derived, External, Optimizer, Unknown, Value, Wrapped

TRACED = (Wrapped, Annotated, Derived, Optimizer)
"""Values whose way through the program is remembered, for provenance."""

MOST_VALUES = 48
"""A variable that would hold more (a registry, a visitor's receiver) holds *unknown* instead of the rest."""
MOST_VALUES_OF_MANY = 24
"""The same in a large program, where registries and their keywords come together in much of the code."""
LARGE = 200_000
"""Variables; some 200,000 lines."""


class Solver:
    """Variables of all files, numbered together, with what flows into them."""

    def __init__(self, files: Sequence[FileFacts]) -> None:
        self.files = files
        self.modules = ModuleTable([file.path for file in files])
        self.variable_offsets: list[int] = []
        self.call_offsets: list[int] = []
        variables = calls = 0
        for file in files:
            self.variable_offsets.append(variables)
            self.call_offsets.append(calls)
            variables += len(file.lines)
            calls += len(file.calls)
        self.first_field = variables
        """Variables from here on are attributes and elements of values, not of a file."""
        self.most_values = MOST_VALUES if variables < LARGE else MOST_VALUES_OF_MANY
        self.points_to: list[frozenset[int] | None] = [None] * variables
        self.copies: dict[int, list[int]] = {}
        self.loads: dict[int, dict[tuple[int, str], None]] = {}
        """By what is read from: where to, and which attribute. The keys are a set with an order, for asking what is in it."""
        self.stores: dict[int, dict[tuple[str, int], None]] = {}
        self.binds: dict[int, list[tuple[int, Value]]] = {}
        self.bound: set[tuple[int, int, int]] = set()
        """What ``binds`` holds, for asking: (variable, to, number of the receiver)."""
        self.fields: dict[tuple[int, str], int] = {}
        self.values: list[Value] = []
        self.ids: dict[Value, int] = {}
        self.alone: list[frozenset[int]] = []
        """The set of each value alone, which most variables hold."""
        self.vital: set[int] = set()
        """Values that always flow on, however many meet."""
        self.constants: set[int] = set()
        self.traced: set[int] = set()
        self.sources: dict[tuple[int, int], int] = {}
        self.pending: dict[int, frozenset[int]] = {}
        """Values that arrived at a variable and have not flowed on yet."""
        self.queue: deque[int] = deque()

    def identify(self, value: Value) -> int:
        number = self.ids.get(value)
        if number is None:
            number = self.ids[value] = len(self.values)
            self.values.append(value)
            self.alone.append(frozenset((number,)))
            if isinstance(value, Constant):
                self.constants.add(number)
            if isinstance(value, TRACED):
                self.traced.add(number)
            owner = value.owner if isinstance(value, Derived) else value
            if isinstance(owner, (Wrapped, Annotated)) or (isinstance(value, External) and is_old(value.name)):
                self.vital.add(number)
        return number

    def add(self, variable: int, value: Value, source: int = NOTHING) -> None:
        """Lets a variable hold a value, which came there from ``source``."""
        self.add_all(variable, self.alone[self.identify(value)], source)

    def add_all(self, variable: int, values: frozenset[int], source: int = NOTHING) -> None:
        """Lets a variable hold values; the set itself is kept, and shared with all that hold just the same."""
        held = self.points_to[variable]
        if held is None:
            new = self.points_to[variable] = values
        else:
            if values is held or not (new := values - held):
                return
            if len(held) + len(new) > self.most_values:
                # Too much meets here to be told apart: the rest is whatever it is, but wrapped models stay known. Keys of a
                # registry, which are many, leave the room to what is in it.
                things = new - self.constants
                fits = len(held - self.constants) + len(things) <= self.most_values
                new = ((things if fits else new & self.vital) | {self.identify(Unknown(NOTHING))}) - held
                if not new:
                    return
            self.points_to[variable] = held | new
        if source != NOTHING and not self.traced.isdisjoint(new):
            for value in new & self.traced:
                self.sources.setdefault((variable, value), source)
        waiting = self.pending.get(variable)
        if waiting is None:
            self.pending[variable] = new
            self.queue.append(variable)
        else:
            self.pending[variable] = waiting | new

    def connect(self, origin: int, to: int) -> None:
        """Lets all that ``origin`` holds, now and later, flow to ``to``."""
        if origin == to:
            return
        targets = self.copies.setdefault(origin, [])
        if to in targets:
            return
        targets.append(to)
        held = self.points_to[origin]
        if held:
            self.add_all(to, held, origin)

    def fresh(self) -> int:
        self.points_to.append(None)
        return len(self.points_to) - 1

    def field(self, value: Value, attribute: str) -> int:
        """The variable of an attribute (or container element) of a value."""
        key = (self.identify(value), attribute)
        variable = self.fields.get(key)
        if variable is None:
            variable = self.fields[key] = self.fresh()
        return variable

    def values_of(self, variable: int) -> list[Value]:
        """What a variable may hold, in a stable order."""
        held = self.points_to[variable] if variable != NOTHING else None
        return [self.values[number] for number in sorted(held)] if held else []

    def exchange(self, renamed: Callable[[Value], Value]) -> None:
        """Puts other values in the place of some, wherever they have flowed."""
        self.values = [renamed(value) for value in self.values]
        self.ids = {value: number for number, value in enumerate(self.values)}

    def chain(self, variable: int, value: Value) -> list[int]:
        """The variables through which a traced value came here, nearest first."""
        number = self.ids.get(value)
        if number is None:
            return [variable]
        chain = [variable]
        while (source := self.sources.get((chain[-1], number))) is not None and len(chain) < 200:
            chain.append(source)
        return [this for this, following in pairwise([*chain, NOTHING]) if this != following]

    def file_of_call(self, site: int) -> int:
        """Index of the file that holds a call."""
        return bisect_right(self.call_offsets, site) - 1
