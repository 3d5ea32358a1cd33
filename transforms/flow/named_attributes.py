"""Attributes by computed names: ``getattr(callback, event)``, ``getattr(hook, f"on_{event}")`` and ``setattr`` alike.

A name may become known after the call that uses it, since it comes in through parameters: it is looked up whenever it
arrives. Of a name that is put together, the part that is written selects among the methods of the repository.
"""

from __future__ import annotations

from collections.abc import Iterator

from ..facts.facts import NOTHING, Call, NamePattern
from .optimizers import Optimizers
from .values import Constant, FunctionValue, Value

READ, WRITTEN = "builtins.getattr", "builtins.setattr"
ANY_NAME = "*"
"""The attribute that has all that methods store in their own objects by computed names: some may never be known."""


class NamedAttributes(Optimizers):
    """The part of the flow analysis that follows attributes whose names are values."""

    named_by: dict[int, list[tuple[Call, str]]]
    """Variables that hold names, and the calls that read or write the attributes of these names."""
    _methods: dict[str, list[FunctionValue]] | None = None

    def access_later(self, site: int, call: Call, kind: str) -> None:
        """Reads or writes the attributes that a call names, now and whenever more names arrive."""
        if len(call.arguments) < 2 or call.arguments[0] == NOTHING:
            return
        owner, name, *others = call.arguments
        if kind == WRITTEN and others and others[0] != NOTHING and self._is_own(site, call, owner):
            self.store_later(owner, ANY_NAME, others[0])
        if name == NOTHING:
            if kind == READ:
                self.load_later(owner, ANY_NAME, call.result)
            return
        accesses = self.named_by.setdefault(name, [])
        if (call, kind) in accesses:
            return
        accesses.append((call, kind))
        if kind == READ:
            for default in others:
                if default != NOTHING:
                    self.connect(default, call.result)
        for value in self.values_of(name):
            self.access(call, kind, value)

    def _is_own(self, site: int, call: Call, owner: int) -> bool:
        """Whether a method asks for attributes of its own object: what a function does to any object tells of none."""
        file = self.file_of_call(self.written_at(site))
        function = self.files[file].functions[call.owner] if call.owner >= 0 else None
        if function is None or function.owner_class == NOTHING or not function.positional:
            return False
        return owner == function.positional[0][1] + self.variable_offsets[file]

    def access(self, call: Call, kind: str, value: Value) -> None:
        """A name arrived where a call reads or writes the attribute of that name."""
        owner, _, *others = call.arguments
        if kind == READ and isinstance(value, Constant) and isinstance(value.value, NamePattern):
            self.load_later(owner, ANY_NAME, call.result)
        for name in self._names(value):
            if kind == READ:
                self.load_later(owner, name, call.result)
            elif others and others[0] != NOTHING:
                self.store_later(owner, name, others[0])

    def _names(self, value: Value) -> Iterator[str]:
        if not isinstance(value, Constant):
            return
        if isinstance(value.value, NamePattern):
            yield from filter(value.value.fits, self.methods_by_name())
        elif isinstance(value.value, str) and value.value.isidentifier():
            yield value.value

    def methods_by_name(self) -> dict[str, list[FunctionValue]]:
        """The methods of the repository's classes."""
        if self._methods is None:
            self._methods = {}
            for number, file in enumerate(self.files):
                for index, function in enumerate(file.functions):
                    if function.owner_class != NOTHING and function.binding == "instance":
                        self._methods.setdefault(function.name, []).append(FunctionValue(number, index))
        return self._methods
