"""Hooks called by name: ``callbacks.run("on_train_start", model)`` ends up in methods called ``on_train_start``.

A registry gets its functions out of sight (in a loop over the attributes of an object, say), so nothing shows which
ones it holds. The name in the call tells them all the same.
"""

from __future__ import annotations

from collections.abc import Iterator

from ..facts.facts import NOTHING, Call, FunctionFacts
from .deferred import Deferred
from .values import Constant, FunctionValue


class NamedHooks(Deferred):
    """The part of the flow analysis that links calls of a registry with what bears the name they give."""

    def pass_arguments(self, site: int, call: Call, value: FunctionValue, receiver: object | None) -> None:
        is_new = (site, value, receiver) not in self.resolved
        super().pass_arguments(site, call, value, receiver)
        function = self.files[value.file].functions[value.index]
        if not is_new or function.variadic == NOTHING or call.starred >= 0:
            return
        own = len(function.positional) - (receiver is not None)
        if own > 0 and len(call.arguments) > own and self._hands_all_on(value):
            for hook in self._namesakes(call.arguments[:own], function):
                self.call_hook(site, call._replace(arguments=call.arguments[own:]), hook)

    def _hands_all_on(self, value: FunctionValue) -> bool:
        """Whether a function makes a call with ``*arguments``."""
        return any(call.owner == value.index and call.starred >= 0 for call in self.files[value.file].calls)

    def _namesakes(self, arguments: tuple[int, ...], registry: FunctionFacts) -> Iterator[FunctionValue]:
        """Methods that bear a name among these arguments."""
        for variable in arguments:
            for name in self.values_of(variable):
                if isinstance(name, Constant) and isinstance(name.value, str) and name.value != registry.name:
                    yield from self.methods_by_name().get(name.value, ())

    def call_hook(self, site: int, call: Call, hook: FunctionValue) -> None:
        """Makes a call of a method that only its name leads to."""
        self.called.setdefault(hook, set()).add(self.written_at(site))
        self.callees.setdefault(self.written_at(site), set()).add(hook)
        offset = self.variable_offsets[hook.file]
        self.bind_parameters(call, self.files[hook.file].functions[hook.index], offset, 1)
