"""Optimizers: the parameters in their groups, the state they keep of each, and what is computed from parameters."""

from __future__ import annotations

from ..facts.facts import ANY_KEY, NOTHING, Call
from . import library
from .objects import Objects
from .values import MODEL_LIKE, Container, Derived, Instance, Optimizer, Value

_MOMENTS = ("exp_avg", "exp_avg_sq", "max_exp_avg_sq", "momentum_buffer", "square_avg", "grad_avg", "sum", "acc_delta")
"""Names under which torch's optimizers keep tensors like the parameter; ``step`` is none of these."""


class Optimizers(Objects):
    """The part of the flow analysis that follows parameters into optimizers and out again."""

    computed_from: dict[int, dict[tuple[int, str], None]]
    """Variables and the results of tensor functions on them. The keys are a set with an order, for asking what is in it."""

    def written_at(self, site: int) -> int:
        """The number of the call in the text that a call stands for: its own, unless it is in a copy of a body."""
        return site

    def copied_for(self, site: int) -> int:
        """The call in the text that a body with this call was copied for; the call itself if it is in none."""
        return site

    def build_optimizer(self, site: int, call: Call, name: str) -> Optimizer:
        """An optimizer is built from the first argument of a call."""
        value = Optimizer(self.written_at(site), name)
        parameters = call.arguments[0] if call.arguments else dict(call.keywords).get("params", NOTHING)
        if parameters != NOTHING:
            self.connect(parameters, self.field(value, "params"))
            self.open_groups(value, parameters)
        self.add(call.result, value)
        return value

    def open_groups(self, value: Optimizer | Instance, parameters: int) -> None:
        """``optimizer.param_groups[0]["params"]`` and ``optimizer.state[p]["exp_avg"]`` lead to what was given."""
        held, entry = self.field(value, "[params]"), self.field(value, "[group]")
        self.connect(parameters, held)
        given = self.field(value, "[given]")
        self.load_later(parameters, ANY_KEY, given)
        self.load_later(given, "[params]", held)
        groups, group = Container(self.field(value, "param_groups"), "list"), Container(entry, "dict")
        self.add(groups.variable, groups)
        self.add(entry, group)
        self.store(groups, ANY_KEY, entry)
        self.store(group, "[params]", held)
        state, moments = Container(self.field(value, "state"), "dict"), Container(self.field(value, "[state]"), "dict")
        self.add(state.variable, state)
        self.add(moments.variable, moments)
        self.store(state, ANY_KEY, moments.variable)
        for name in _MOMENTS:
            moment = self.field(moments, f"[{name}]")
            self.compute_later(held, moment)
            self.connect(moment, self.field(moments, "[any]"))

    def is_own_optimizer(self, instance: Instance, value: Optimizer) -> None:
        """An object of a subclass in the repository: its methods find the groups and the state on ``self``."""
        for name in ("param_groups", "state"):
            self.connect(self.field(value, name), self.field(instance, name))

    def compute_later(self, argument: int, result: int, kind: str = "statistic") -> None:
        """``result`` is computed from the parameters or gradients that ``argument`` holds, now or later.

        Of another kind it is taken from a model that ``argument`` holds.
        """
        targets = self.computed_from.setdefault(argument, {})
        if (result, kind) not in targets:
            targets[result, kind] = None
            for value in self.values_of(argument):
                self.compute(value, result, kind, argument)

    def compute(self, value: Value, result: int, kind: str, source: int) -> None:
        """A value arrived that ``result`` is computed or taken from."""
        if kind != "statistic":
            if isinstance(value, MODEL_LIKE):
                self.add(result, Derived(kind, value), source)
        elif isinstance(value, Derived) and value.kind in library.TENSORS:
            self.add(result, Derived("statistic", value.owner), source)
        elif isinstance(value, Container):
            # Once for all that is computed from it: what nests would be gone through anew for each result.
            of_elements = self.field(value, "[statistic]")
            self.compute_later(self.field(value, "[any]"), of_elements)
            self.connect(of_elements, result)
