"""Small functions, told apart for each call: what one caller hands in does not come out at another.

``tensor_to_device(tensor)`` or ``ensure_tuple(x)`` are called with parameters here and with counters there. Their
variables and constraints are copied for every call, so that its result holds what its own arguments held. What runs
inside the function is seen by the rules as before: the written body still receives the arguments of all calls.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence

from ..facts.facts import NOTHING, Call, FileFacts, FunctionFacts
from ..facts.symbols import WRAPPERS
from .library import RETURN_SELF
from .named_hooks import NamedHooks
from .values import Annotated, ClassValue, Constant, Container, External, FunctionValue

_DEEPEST = 2
_DEEPEST_RELAY = 4
"""How far calls inside a copied body are told apart as well; those of functions that hand back what they get, or read
what has the name that they get, further."""
_MOST_COPIED = 120_000
"""How many variables copies may take together; calls after that share the written bodies. Without bounds they would be as many
as bodies times calls times the classes that ``self.layer(x)`` may reach in each."""


class Relays(NamedHooks):
    """The part of the flow analysis that copies small bodies."""

    def __init__(self, files: Sequence[FileFacts]) -> None:
        super().__init__(files)
        self._copied: dict[int, tuple[Call, int, int, int]] = {}
        """Calls in copied bodies by their (negative) numbers: itself, as written, how deep it is, what it is copied for."""
        self._bodies: dict[tuple[int, FunctionValue], int] = {}
        self._copies_of: list[tuple[int, int, int]] = []
        """(first variable, end, first variable in the text) of every copied body."""
        self._module_names: dict[int, frozenset[int]] = {}
        self._room = _MOST_COPIED

    def sites(self) -> list[int]:
        """The numbers of all calls, those in copied bodies among them."""
        return [*range(len(self.calls)), *self._copied]

    def call_at(self, site: int) -> Call:
        return self.calls[site] if site >= 0 else self._copied[site][0]

    def written_at(self, site: int) -> int:
        return site if site >= 0 else self._copied[site][1]

    def copied_for(self, site: int) -> int:
        """The call in the text that a body with this call was copied for; the call itself if it is in none."""
        return site if site >= 0 else self._copied[site][3]

    def variable_in_text(self, variable: int) -> int:
        """The variable that one in a copied body is a copy of; any other variable itself."""
        place = bisect_right(self._copies_of, (variable, len(self.points_to), 0)) - 1
        if place >= 0:
            start, end, written = self._copies_of[place]
            if variable < end:
                return variable - start + written
        return variable

    def body_for(self, site: int, value: FunctionValue, call: Call, skip: int) -> int:
        """What the variables of the body that a call runs are shifted by; ``skip`` parameters are bound already."""
        key = (site, value)
        if key not in self._bodies:
            arguments = arguments_by_parameter(call, self.files[value.file].functions[value.index], skip)
            written = {parameter: self.literals[one] for parameter, one in arguments.items() if one in self.literals}
            self._bodies[key] = self._copy(site, value, written)
        return self._bodies[key]

    def _copy(self, site: int, value: FunctionValue, literals: Mapping[int, object]) -> int:
        """Copies a function's body for one call and returns what its variables are shifted by."""
        file = self.files[value.file]
        body = file.functions[value.index].body
        written = self.variable_offsets[value.file]
        depth = 0 if site >= 0 else self._copied[site][2]
        if body is None:
            return written
        keys = {place: literals.get(file.parameter_keys.get(place, NOTHING)) for place in range(*body.loads)}
        if depth >= (_DEEPEST_RELAY if body.hands_back or any(key is not None for key in keys.values()) else _DEEPEST):
            return written
        start, end = body.variables
        if end - start > self._room:
            return written
        self._room -= end - start
        own = len(self.points_to) - start
        self.points_to.extend([None] * (end - start))
        self._copies_of.append((start + own, end + own, start + written))
        shared = self._names_of(value.file)

        def shift(variable: int) -> int:
            return variable + (own if start <= variable < end and variable not in shared else written)

        for variable, constant in file.constants[slice(*body.constants)]:
            self.add(shift(variable), Constant(constant, type(constant).__name__))
            self.note_literal(shift(variable), constant)
        for variable, kind in file.containers[slice(*body.containers)]:
            self.add(shift(variable), Container(shift(variable), kind))
        for to, origin in file.copies[slice(*body.copies)]:
            self.connect(shift(origin), shift(to))
        for parameter, literal in literals.items():
            self.literals[shift(parameter)] = literal
        for place, key in keys.items():
            to, base, attribute = file.loads[place]
            self.load_later(shift(base), attribute if key is None else f"[{key}]", shift(to))
        for base, attribute, origin in file.stores[slice(*body.stores)]:
            self.store_later(shift(base), attribute, shift(origin))
        for variable, annotation in file.annotations[slice(*body.annotations)]:
            self.annotate(shift(variable), shift(annotation))
        first = self.call_offsets[value.file]
        for position in range(*body.calls):
            call = shifted_call(file.calls[position], shift)
            number = -2 - len(self._copied)
            self._copied[number] = (call, first + position, depth + 1, self.copied_for(site))
            self.register_call(number, call)
        return own

    def _names_of(self, file: int) -> frozenset[int]:
        """Variables of module-level names, which a body may have been the first to mention."""
        if file not in self._module_names:
            self._module_names[file] = frozenset(self.files[file].names.values())
        return self._module_names[file]

    def predecessors(self) -> dict[int, list[int]]:
        """Where each variable gets what it holds from: by plain copies, and by methods that return what they are called on."""
        found: dict[int, list[int]] = {}
        for origin, targets in self.copies.items():
            for to in targets:
                found.setdefault(to, []).append(origin)
        for call in map(self.call_at, self.sites()):
            if call.method in RETURN_SELF and call.result != NOTHING:
                found.setdefault(call.result, []).append(call.function)
        return found

    def annotate(self, variable: int, annotation: int) -> None:
        """A variable is annotated with a name: that of a wrapper says what it holds."""
        for value in self.values_of(annotation):
            kind = WRAPPERS.get(value.name) if isinstance(value, External) else None
            if isinstance(value, ClassValue):
                kind = self.wrapper_kind(value)
            if kind is not None:
                self.add(variable, Annotated(kind))


def shifted_call(call: Call, shift: Callable[[int], int]) -> Call:
    """A call with its variables numbered anew."""

    def moved(variable: int) -> int:
        return shift(variable) if variable != NOTHING else NOTHING

    return call._replace(
        result=moved(call.result),
        function=moved(call.function),
        arguments=tuple([moved(variable) for variable in call.arguments]),
        keywords=tuple([(name, moved(variable)) for name, variable in call.keywords]),
    )


def arguments_by_parameter(call: Call, function: FunctionFacts, skip: int) -> dict[int, int]:
    """The variables of a call's arguments, by those of the parameters that get them; ``skip`` are bound already."""
    named = dict([*function.positional, *function.keyword_only])
    in_front = call.arguments if call.starred < 0 else call.arguments[: call.starred]
    by_place = zip([variable for _, variable in function.positional[skip:]], in_front, strict=False)
    return dict(by_place) | {named[name]: argument for name, argument in call.keywords if name in named}
