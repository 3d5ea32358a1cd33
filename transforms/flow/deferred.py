"""Functions that are handed to something that calls them later: threads, processes, executors, handlers of signals and at exit.

Their parameters get what is handed over with them. They have no callers by that: whoever hands a function on does not
call it, and nothing says which collectives of other code run meanwhile.
"""

from __future__ import annotations

from ..facts.facts import NOTHING, Call
from .appliers import Appliers
from .values import Bound, FunctionValue, Opaque, Value

_WITH_TARGET = frozenset(
    {
        "threading.Thread", "multiprocessing.Process", "multiprocessing.context.Process", "torch.multiprocessing.Process",
        "multiprocessing.process.BaseProcess", "multiprocessing.dummy.Process",
    }
)  # fmt: skip
_WITH_TIMER = frozenset({"threading.Timer"})
_ARGUMENTS_FOLLOW = frozenset({"atexit.register", "asyncio.to_thread"})
_HANDLES_SIGNALS = frozenset({"signal.signal"})
_EXECUTORS = ("concurrent.futures.", "multiprocessing.Pool", "multiprocessing.pool.", "torch.multiprocessing.Pool")
_SUBMITS = frozenset({"submit"})
_APPLIES = frozenset({"apply_async"})
_MAPS = frozenset({"map", "map_async", "imap", "imap_unordered"})


class Deferred(Appliers):
    """The part of the flow analysis that follows values into functions which something outside calls."""

    deferred: dict[FunctionValue, set[int]]
    """Functions that are handed on, and the calls that do so."""
    handed_on: dict[tuple[int, int], Call]
    """What goes with the function in a variable, for each call that hands one on."""

    def call(self, site: int, value: Value, variable: int) -> None:
        passed = self.handed_on.get((site, variable))
        if passed is not None:
            self._receive(site, passed, value)
        else:
            super().call(site, value, variable)

    def call_external(self, site: int, call: Call, name: str) -> None:
        super().call_external(site, call, name)
        keywords = dict(call.keywords)
        if name in _WITH_TARGET:
            places = [*call.arguments, NOTHING, NOTHING, NOTHING, NOTHING]
            self._defer(site, call, keywords.get("target", places[1]), keywords.get("args", places[3]))
        elif name in _WITH_TIMER:
            places = [*call.arguments, NOTHING, NOTHING, NOTHING]
            self._defer(site, call, keywords.get("function", places[1]), keywords.get("args", places[2]))
        elif name in _ARGUMENTS_FOLLOW and call.arguments:
            self._hand_on(site, call.arguments[0], call._replace(arguments=call.arguments[1:]))
        elif name in _HANDLES_SIGNALS:
            places = [*call.arguments, NOTHING, NOTHING]
            self._hand_on(site, keywords.get("handler", places[1]), call._replace(arguments=(), keywords=()))

    def call_method(self, site: int, call: Call, value: Value) -> None:
        super().call_method(site, call, value)
        if isinstance(value, Opaque) and value.name.startswith(_EXECUTORS) and call.arguments:
            if call.method in _SUBMITS:
                self._hand_on(site, call.arguments[0], call._replace(arguments=call.arguments[1:]))
            elif call.method in _APPLIES:
                arguments = [*call.arguments, NOTHING][1]
                self._defer(site, call, call.arguments[0], dict(call.keywords).get("args", arguments))
            elif call.method in _MAPS:
                self._hand_on(site, call.arguments[0], call._replace(arguments=tuple(self.elements(call.arguments[1:]))))

    def _defer(self, site: int, call: Call, function: int, arguments: int) -> None:
        """A function with its arguments in a tuple."""
        passed = call._replace(
            keywords=(), starred=0 if arguments != NOTHING else -1, arguments=(arguments,) if arguments != NOTHING else ()
        )
        self._hand_on(site, function, passed)

    def _hand_on(self, site: int, function: int, passed: Call) -> None:
        if function == NOTHING or (site, function) in self.handed_on:
            return
        self.handed_on[site, function] = passed
        self.calls_on.setdefault(function, []).append(site)
        for value in self.values_of(function):
            self._receive(site, passed, value)

    def _receive(self, site: int, passed: Call, value: Value) -> None:
        called = value.function if isinstance(value, Bound) else value
        if not isinstance(called, FunctionValue):
            return
        self.deferred.setdefault(called, set()).add(self.written_at(site))
        if isinstance(value, Bound):
            self.pass_receiver(called, value.receiver)
        facts = self.files[called.file].functions[called.index]
        self.bind_parameters(passed, facts, self.variable_offsets[called.file], 1 if isinstance(value, Bound) else 0)
