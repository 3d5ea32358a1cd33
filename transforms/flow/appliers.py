"""Functions that call what they are handed, at once or element by element: ``map``, ``filter``, ``sorted``, ``reduce``; and
``apply`` of modules, which calls it with each of their parts.

The call of ``map`` is taken for the call of the function, with the elements for its arguments; rules that look at the
arguments of a call have to ask first whether it is one of these (``applied_at``).
"""

from __future__ import annotations

from collections.abc import Sequence

from ..facts.facts import ANY_KEY, NOTHING, Call
from .calls import MODEL_LIKE, Calls
from .values import Bound, ClassValue, Container, Derived, FunctionValue, Instance, Partial, Value

_MAPS = frozenset({"builtins.map", "builtins.filter", "torch.utils._pytree.tree_map", "optree.tree_map"})
_OF_TREES = frozenset(name for name in _MAPS if name.endswith("tree_map"))
_BY_KEY = frozenset({"builtins.sorted", "builtins.min", "builtins.max"})
_REDUCES = frozenset({"functools.reduce", "itertools.accumulate"})
_KNOWN = (FunctionValue, Bound, ClassValue, Partial)
"""What is followed; of functions from outside it is not known what they make of an element."""
_CALLED = "__call__"


class Appliers(Calls):
    """The part of the flow analysis that follows elements into functions that are applied to them."""

    applied: dict[tuple[int, int], list[Call]]
    """What functions in a variable are called with, for each call that applies them."""
    applied_at: set[int]
    """The calls that apply a function which they are handed."""

    def call(self, site: int, value: Value, variable: int) -> None:
        applied = self.applied.get((site, variable), ())
        for passed in applied:
            self._apply_value(site, passed, value)
        if not applied or variable == self.call_at(site).function:
            super().call(site, value, variable)

    def call_external(self, site: int, call: Call, name: str) -> None:
        arguments = call.arguments
        if name in _MAPS and len(arguments) > 1 and self._is_known(arguments[0]):
            self._map(site, call, name)
            return
        super().call_external(site, call, name)
        if name in _BY_KEY and arguments:
            self._apply_key(site, call, self.elements(arguments[:1]) if len(arguments) == 1 else arguments)
        elif name in _REDUCES and len(arguments) > 1:
            function, items = arguments[:2] if name == "functools.reduce" else arguments[1::-1]
            total, held = self.fresh(), self.elements([items])
            for first in arguments[2:3] or held:
                if first != NOTHING:
                    self.connect(first, total)
            self._apply(site, function, call._replace(result=total, arguments=(total, *held)))
            self.connect(total, call.result)
        elif name == "itertools.starmap" and len(arguments) > 1:
            passed = call._replace(result=self.fresh(), arguments=tuple(self.elements(arguments[1:2])), starred=0)
            self._apply(site, arguments[0], passed)
            self._hold(call, passed.result)

    def call_method(self, site: int, call: Call, value: Value) -> None:
        super().call_method(site, call, value)
        if call.method == "apply" and isinstance(value, MODEL_LIKE) and call.arguments:
            module = self.fresh()
            self.add(module, Derived("modules", value))
            self._apply(site, call.arguments[0], call._replace(result=self.fresh(), arguments=(module,), starred=0))
        if isinstance(value, Container) and call.method == "sort":
            self._apply_key(site, call, self.elements([call.function]))

    def _map(self, site: int, call: Call, name: str) -> None:
        given = call.arguments[1:]
        elements = self.elements(given)
        if name in _OF_TREES:
            for argument, element in zip(given, elements, strict=True):
                if argument != NOTHING:
                    self.connect(argument, element)
        passed = call._replace(result=self.fresh(), arguments=tuple(elements))
        self._apply(site, call.arguments[0], passed)
        for kept in elements if name == "builtins.filter" else (passed.result,):
            self._hold(call, kept)

    def _hold(self, call: Call, element: int) -> None:
        container = Container(call.result, "list")
        self.add(call.result, container)
        self.connect(element, self.field(container, "[any]"))
        self.connect(element, self.field(container, ANY_KEY))

    def elements(self, containers: Sequence[int]) -> list[int]:
        """New variables that hold what these containers hold."""
        found: list[int] = []
        for container in containers:
            found.append(self.fresh())
            if container != NOTHING:
                self.load_later(container, ANY_KEY, found[-1])
        return found

    def _is_known(self, variable: int) -> bool:
        held = self.values_of(variable)
        return bool(held) and all(isinstance(value, _KNOWN) for value in held)

    def _apply_key(self, site: int, call: Call, elements: Sequence[int]) -> None:
        key = dict(call.keywords).get("key", NOTHING)
        if key != NOTHING:
            for element in elements:
                self._apply(site, key, call._replace(result=self.fresh(), arguments=(element,)))

    def _apply(self, site: int, function: int, passed: Call) -> None:
        if function == NOTHING:
            return
        passed = passed._replace(function=function, method=None, keywords=())
        self.applied.setdefault((site, function), []).append(passed)
        self.calls_on.setdefault(function, []).append(site)
        for value in self.values_of(function):
            self._apply_value(site, passed, value)

    def _apply_value(self, site: int, passed: Call, value: Value) -> None:
        if isinstance(value, Instance) and (site, value, _CALLED) not in self.resolved:
            self.resolved.add((site, value, _CALLED))
            method = self.fresh()
            self.load_member(value.cls, _CALLED, method, value)
            self._apply(site, method, passed)
        elif isinstance(value, _KNOWN):
            self.applied_at.add(self.written_at(site))
            self.call_value(site, passed, value)
