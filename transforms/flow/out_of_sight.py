"""What code out of sight hands in: models, and objects that a registry makes.

A model that is wrapped where nothing shows what it is (a trainer's parameter, in a library) is some module all the same.

``hook.after_step(trainer)``, where nothing shows what the hook is, calls a method of what a registry makes: classes that no
code is seen to instantiate are made somewhere all the same. A method that is called on what nothing is known of, and gets
the object that calls it, is taken for theirs by its name: a trainer and its hooks.
"""

from __future__ import annotations

import builtins

from ..facts.facts import NOTHING, Call
from . import library
from .factories import Factories
from .named_attributes import READ
from .relays import Relays
from .values import UNKNOWN, Bound, ClassValue, Constant, FunctionValue, Instance, Opaque, Wrapped

_OF_TENSORS_AND_MODULES = library.TENSOR_MATH | library.RETURN_SELF | library.STAYS_DERIVED | frozenset(library.DERIVED)
_OF_ALL = frozenset(
    {"forward", "backward", "step", "zero_grad", "load_state_dict", "item", "numpy", "tolist", "read", "write", "close", "flush"}
) | _OF_TENSORS_AND_MODULES
_OF_TRAINED = frozenset({"train", "parameters", "named_parameters", "no_sync"})
_MOST_OF_MIXINS = 4
"""Methods of one name: of more, the name tells nothing."""
_OF_BUILTINS = frozenset(
    name for kind in (builtins.dict, builtins.list, builtins.set, builtins.str, builtins.object) for name in dir(kind)
)


class OutOfSight(Relays):
    """The part of the flow analysis that calls methods of objects which nothing shows."""

    made_by_factories: set[Opaque]
    """Objects of classes that nothing shows, one for each call of the function that makes them."""
    made_in_factories: set[int]
    """Where these are made, inside of the functions."""
    called_by_name: set[FunctionValue]
    """Methods that are called by their name alone: whatever else may come to them stays unknown."""

    def seed_models_out_of_sight(self) -> None:
        """Gives each wrap whose model nothing shows a model of its own, from where it is handed in on.

        If a factory made it, each of its calls makes an object of its own.
        """
        unseen = [(wrapped, model) for wrapped, model in self.wrapped_models.items() if self._holds_nothing(model)]
        if not unseen:
            return
        origins = self.predecessors()
        factories = Factories(self, origins)
        used: set[FunctionValue] = set()
        for wrapped, model in unseen:
            firsts = _first_ones(model, origins, factories)
            # A library that makes one by a name, and a configuration that says which, are on the way too, and no models.
            for variable in [v for v in firsts if factories.that_gave(v) is not None or self._holds_nothing(v)] or [model]:
                made_by = factories.that_gave(variable)
                if made_by is not None:
                    used.add(made_by)
                    self.made_in_factories |= factories.made_inside(variable)
                else:
                    self.add(variable, Opaque(wrapped.site, UNKNOWN))
        for site in self.sites() if used else ():
            result = self.call_at(site).result
            if self._holds_nothing(result) and not used.isdisjoint(self.callees.get(self.written_at(site), ())):
                made = Opaque(self.copied_for(site), UNKNOWN, site)
                self.made_by_factories.add(made)
                self.add(result, made)

    def seed_trained_models(self) -> None:
        """Gives functions that train a model which nothing shows those that are wrapped; it may be another one."""
        wraps = [value for value in self.values if isinstance(value, Wrapped)]
        for variable in self._models_trained() if wraps else ():
            for value in wraps if self._holds_nothing(variable) else ():
                self.add(variable, value)
                self.add(variable, Opaque(value.site, UNKNOWN))  # so that nothing is sure

    def _models_trained(self) -> set[int]:
        """What holds nothing in functions that go backward, themselves or by others, and is used as only trained models are."""
        places = {site: (self.file_of_call(site), call.owner) for site, call in enumerate(self.calls) if call.owner >= 0}
        trains = {FunctionValue(*place) for site, place in places.items() if self.calls[site].method == "backward"}
        pending = list(trains)
        while pending:
            callers = {FunctionValue(*places[site]) for site in self.called.get(pending.pop(), ()) if site in places}
            pending += callers - trains
            trains |= callers
        used = (call.function for site, call in enumerate(self.calls)
                if call.method in _OF_TRAINED and site in places and FunctionValue(*places[site]) in trains)  # fmt: skip
        return {variable for variable in used if self._holds_nothing(variable)}

    def seed_objects_out_of_sight(self) -> None:
        """Links calls on what holds nothing with the methods, of these names, of classes that nothing makes."""
        methods = self._methods_of_unmade()
        for site, call in enumerate(self.calls):
            if call.method in methods and self._holds_nothing(call.function) and self._hands_itself_over(site, call):
                for method, _ in methods[call.method]:
                    self.called_by_name.add(method)
                    self.call_hook(site, call, method)
        for variable, accesses in list(self.named_by.items()):
            names = [value.value for value in self.values_of(variable) if isinstance(value, Constant)]
            for call, kind in accesses:
                if kind == READ and self._holds_nothing(call.arguments[0]):
                    for method, receiver in (found for name in names for found in methods.get(name, ())):
                        self.called_by_name.add(method)
                        self.add(call.result, Bound(method, receiver))

    def seed_methods_of_mixins(self) -> None:
        """Links `self.method()` in a class that has no such method, nor a base elsewhere, with the methods of that name.

        Classes that a program puts together as it runs, ``type("Trainer", (Saving, Training), {})``, have it of one another.
        """
        named = self.methods_by_name().items()
        methods = {name: found for name, found in named if len(found) <= _MOST_OF_MIXINS and name not in _OF_BUILTINS | _OF_ALL}
        for site, call in enumerate(self.calls):
            found = methods.get(call.method or "", ())
            if found and not self.callees.get(self.written_at(site)):
                receivers = self.values_of(call.function)
                if receivers and all(isinstance(v, Instance) and self._lacks(v.cls, call.method) for v in receivers):
                    for method in found:
                        self.called_by_name.add(method)
                        self.call_hook(site, call, method)

    def _lacks(self, cls: ClassValue, member: str | None) -> bool:
        """Whether a class without a base out of sight has nothing of a name, not even an attribute."""
        if member is None or self.has_member(cls, member) or not set(self.external_bases(cls)) <= {"builtins.object"}:
            return False
        instances = self.instances.get(cls, ())
        return not any((self.ids.get(value), member) in self.fields and self.values_of(self.fields[self.ids[value], member])
                       for value in instances)  # fmt: skip

    def _holds_nothing(self, variable: int) -> bool:
        return variable != NOTHING and not self.points_to[variable]

    def _hands_itself_over(self, site: int, call: Call) -> bool:
        """Whether a method hands over the object that it is a method of."""
        file = self.file_of_call(site)
        function = self.files[file].functions[call.owner] if call.owner >= 0 else None
        if function is None or function.owner_class == NOTHING or not function.positional:
            return False
        own = function.positional[0][1] + self.variable_offsets[file]
        return own in call.arguments or own in dict(call.keywords).values()

    def _methods_of_unmade(self) -> dict[object, list[tuple[FunctionValue, Instance]]]:
        found: dict[object, list[tuple[FunctionValue, Instance]]] = {}
        for name, methods in self.methods_by_name().items():
            if name in _OF_BUILTINS or name in _OF_ALL:
                continue
            for method in methods:
                cls = ClassValue(method.file, self.files[method.file].functions[method.index].owner_class)
                receiver = Instance(cls, -1)
                is_module = any(base.startswith("torch.nn.") for base in self.external_bases(cls))
                if self.instances.get(cls) == {receiver} and not is_module:
                    found.setdefault(name, []).append((method, receiver))
        return found


def _first_ones(variable: int, origins: dict[int, list[int]], factories: Factories) -> list[int]:
    """A variable, or where its values would come from: what factories give, parameters that nobody hands anything in for."""
    pending, seen, found = [variable], {variable}, []
    while pending:
        current = pending.pop()
        further = origins.get(current, ()) if factories.that_gave(current) is None else ()
        if not further:
            found.append(current)
        pending += [origin for origin in further if origin not in seen]
        seen.update(further)
    return found
