"""Optimizers that nothing shows to be any: ``getattr(torch.optim, name)(model.parameters())``, ``instantiate(config, …)``.

What code that is not seen makes of parameters, or makes of a model under a name like ``create_optimizer``, and what is
later asked to ``step``, or comes out of a module for optimizers, is an optimizer.
"""

from __future__ import annotations

from collections.abc import Iterator

from ..facts.facts import NOTHING, Call
from . import library
from .out_of_sight import OutOfSight
from .values import UNKNOWN, Container, Derived, FunctionValue, Instance, Opaque, Optimizer, Unknown, Value, Wrapped

_USES = frozenset({"step", "zero_grad"})
_DEEPEST = 3


class UnseenOptimizers(OutOfSight):
    """The part of the flow analysis that finds optimizers by what they are made of and what is done with them."""

    def mark_unseen_optimizers(self) -> dict[int, Call]:
        """Calls that parameters are given to, with their numbers; what nothing is known of gives back something."""
        holders = self._holders_of_parameters()
        candidates = {site: call for site in self.sites() if self._may_make_one(call := self.call_at(site), holders)}
        for site, call in candidates.items():
            is_known = self.points_to[call.function] or self.points_to[call.result]
            if not is_known and call.result not in self.made_in_factories:
                self.add(call.result, Opaque(self.written_at(site), UNKNOWN))
        return candidates

    def make_unseen_optimizers(self, candidates: dict[int, Call]) -> None:
        """Makes optimizers of what came of these calls and is used as one."""
        written = {self.written_at(site) for site in candidates}
        used = {
            value.site: value.name
            for site in self.sites()
            if (call := self.call_at(site)).method in _USES
            for value in (*self.values_of(call.function), *self._stepped_by_another(call))
            if isinstance(value, Opaque) and value.site in written and not value.name.startswith("torch.")
        }
        for call in candidates.values():
            made = (value for value in self.values_of(call.result) if isinstance(value, Opaque) and value.site in written)
            used |= {value.site: value.name for value in made if library.is_optimizer_class(value.name)}
        holders = self._holders_of_parameters()
        makers = {maker: name for site, name in used.items() for maker in self._makers(site, written, set())}
        for site, call in candidates.items():
            name = makers.get(self.written_at(site))
            if name is not None:
                self.build_optimizer(site, call._replace(arguments=(self._parameters_given(call, holders),), keywords=()), name)

    def _stepped_by_another(self, call: Call) -> Iterator[Value]:
        """What a call hands to something that steps it: ``scaler.step(optimizer)``."""
        for variable in call.arguments[:1] if call.method == "step" else ():
            yield from self.values_of(variable) if variable != NOTHING else ()

    def seed_own_optimizers(self) -> None:
        """The repository's own classes of optimizers that nothing shows the parameters of may get those of any wrapped model."""
        models = [value for value in self.values if isinstance(value, Wrapped)]
        unseen = [found for found in self._own_optimizers() if not self._has_parameters(*found)] if models else []
        for instance, _ in unseen:
            parameters = self.fresh()
            for model in models:
                self.add(parameters, Derived("parameters", model))
            self.open_groups(instance, parameters)

    def _own_optimizers(self) -> Iterator[tuple[Instance, str]]:
        for cls, instances in list(self.instances.items()):
            name = self.optimizer_base(cls)
            yield from ((instance, name) for instance in instances if name is not None)

    def _has_parameters(self, instance: Instance, name: str) -> bool:
        given = self.fields.get((self.identify(Optimizer(instance.site, name)), "[params]"))
        return given is not None and any(isinstance(value, Derived) for value in self.values_of(given))

    def _makers(self, site: int, written: set[int], seen: set[int]) -> Iterator[int]:
        """The call that makes an object: for one in a factory of anything, those that the factory is called by."""
        if site in seen:
            return
        seen.add(site)
        call, file = self.calls[site], self.file_of_call(site)
        function = self.files[file].functions[call.owner] if call.owner >= 0 else None
        if function is None or (call.starred < 0 and function.variadic == NOTHING):
            yield site
            return
        for caller in sorted(self.called.get(FunctionValue(file, call.owner), ())):
            if caller in written:
                yield from self._makers(caller, written, seen)

    def _may_make_one(self, call: Call, holders: set[int]) -> bool:
        if call.function == NOTHING:
            return False
        if any(not holders.isdisjoint(self.points_to[variable] or ()) for variable in _given(call)):
            return True
        made = (value for value in self.values_of(call.result) if isinstance(value, Opaque))
        names = any("optim" in value.name.rpartition(".")[2].lower() for value in made)
        return names and any(self._is_model(value) for variable in _given(call) for value in self.values_of(variable))

    def _parameters_given(self, call: Call, holders: set[int]) -> int:
        """A variable with the parameters that a call is given, also as those of a model."""
        parameters = self.fresh()
        for variable in _given(call):
            if not holders.isdisjoint(self.points_to[variable] or ()):
                self.connect(variable, parameters)
                continue
            for value in self.values_of(variable):
                if self._is_model(value):
                    self.add(parameters, Derived("parameters", value))
        return parameters

    def _holders_of_parameters(self) -> set[int]:
        """The numbers of all values that are the parameters of a model, or containers that hold them at some depth."""
        values = enumerate(self.values)
        found = {n for n, v in values if isinstance(v, Derived) and v.kind == "parameters" and self._is_model(v.owner)}
        inside = [(number, self.points_to[variable] or ()) for (number, key), variable in self.fields.items()
                  if key in ("[any]", "[params]") and isinstance(self.values[number], Container)]  # fmt: skip
        for _ in range(_DEEPEST):
            found |= {number for number, held in inside if not found.isdisjoint(held)}
        return found

    def _is_model(self, value: object) -> bool:
        """Whether a value may be a model of its own: not what stands for all that comes from out of sight."""
        if isinstance(value, Opaque):
            return value.name != UNKNOWN or value in self.made_by_factories
        return isinstance(value, (Wrapped, Instance)) or (isinstance(value, Unknown) and value.variable != NOTHING)


def _given(call: Call) -> list[int]:
    keywords = dict(call.keywords)
    given = [*call.arguments, keywords.get("params", NOTHING), keywords.get("model", NOTHING)]
    return [variable for variable in given if variable != NOTHING]
