"""The flow of values with what a run has shown of dynamic code: which functions calls enter, which objects variables hold.

What was seen takes the place of what nothing was known of, and nothing else: all that the functions which were entered may
return flows on, so that a branch which the run did not take counts like any other.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from ..facts.facts import NOTHING, Call, FileFacts
from .flow import Flow
from .values import Annotated, ClassValue, FunctionValue, Instance, Opaque, Unknown, Value, Wrapped


@dataclass(frozen=True)
class Callee:
    """A function that a call entered, with the object or class that it was called on."""

    function: FunctionValue
    receiver: ClassValue | None = None
    on_class: bool = False
    constructs: bool = False
    """Whether the call made an object, of which the function is the constructor."""


@dataclass(frozen=True)
class Observations:
    """What a run showed, in the numbers of the flow."""

    calls: dict[int, list[Callee]] = field(default_factory=dict)
    held: dict[int, list[Value]] = field(default_factory=dict)
    """Objects of the repository's classes, its classes and functions, by the variable that held them."""
    returned: dict[int, list[FunctionValue]] = field(default_factory=dict)
    """Functions whose results came to a variable through other code."""
    replaced: dict[int, frozenset[Value]] = field(default_factory=dict)
    """What is refused at these variables, since it stood for what has been seen now."""
    known: dict[int, frozenset[Value]] = field(default_factory=dict)
    """What came to the variables of ``held`` without the run."""
    passed: list[tuple[int, int]] = field(default_factory=list)

    def variables(self, flow: Flow) -> frozenset[int]:
        """The variables at which something was seen."""
        results = (flow.calls[site].result for site in self.calls)
        return frozenset({*results, *self.held, *self.returned, *(to for _, to in self.passed)})


class ObservedFlow(Flow):
    """A flow that knows what a run has shown."""

    def __init__(
        self, files: Sequence[FileFacts], observations: Observations, paths: Collection[str] = (),
        links: Mapping[str, str] | None = None,
    ) -> None:  # fmt: skip
        self.observations = observations
        super().__init__(files, paths=paths, links=links)

    def seed_receivers(self) -> None:
        super().seed_receivers()
        for variable in self.observations.replaced:
            self._seed(variable, variable)
        for origin, to in self.observations.passed:
            self.connect(origin, to)

    def _seed(self, variable: int, written: int) -> None:
        """Gives a variable, or a copy of it, what was seen where it is written."""
        for value in self.observations.held.get(written, ()):
            if isinstance(value, Instance):
                self.new_instance(value.cls, value.site)
            self.add(variable, value)
        for function in self.observations.returned.get(written, ()):
            returns = self.files[function.file].functions[function.index].returns
            self.connect(returns + self.variable_offsets[function.file], variable)

    def _copy(self, site: int, value: FunctionValue, literals: Mapping[int, object]) -> int:
        own, written = super()._copy(site, value, literals), self.variable_offsets[value.file]
        body = self.files[value.file].functions[value.index].body
        if own != written and body is not None:
            for local in range(*body.variables):
                if local + written in self.observations.replaced:
                    self._seed(local + own, local + written)
        return own

    def add_all(self, variable: int, values: frozenset[int], source: int = NOTHING) -> None:
        written = self.variable_in_text(variable)
        if written in self.observations.replaced:
            values = frozenset(number for number in values if self._is_allowed(written, self.values[number]))
        if values:
            super().add_all(variable, values, source)

    def _is_allowed(self, variable: int, value: Value) -> bool:
        if isinstance(value, (Wrapped, Annotated)):
            return True
        if value in self.observations.replaced[variable]:
            return False
        held = self.observations.held.get(variable)
        if held is None or variable in self.observations.returned or not isinstance(value, (Instance, ClassValue, FunctionValue)):
            return True
        # A factory of anything gives back here what it gave back here, not what others got from it.
        kinds = [one.cls if isinstance(one, Instance) else one for one in held]
        return (value.cls if isinstance(value, Instance) else value) in kinds or value in self.observations.known[variable]

    def register_call(self, site: int, call: Call) -> None:
        super().register_call(site, call)
        for callee in self.observations.calls.get(self.written_at(site), ()):
            if callee.constructs and callee.receiver is not None:
                self.instantiate(site, call, callee.receiver)
                continue
            receiver: object = None
            facts = self.files[callee.function.file].functions[callee.function.index]
            if callee.receiver is not None and facts.owner_class != NOTHING and facts.binding != "static":
                receiver = callee.receiver if callee.on_class else self.new_instance(callee.receiver, NOTHING)
            self.pass_arguments(site, call, callee.function, receiver)

    def call_value(self, site: int, call: Call, value: Value) -> None:
        if not self._is_replaced(site, value):
            super().call_value(site, call, value)

    def call_method(self, site: int, call: Call, value: Value) -> None:
        if not self._is_replaced(site, value):
            super().call_method(site, call, value)

    def _is_replaced(self, site: int, value: Value) -> bool:
        """Whether a call of what is not known has been seen to enter something."""
        return isinstance(value, (Opaque, Unknown)) and self.written_at(site) in self.observations.calls
