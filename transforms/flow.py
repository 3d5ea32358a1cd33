"""Which values reach which variables, over the whole repository: a fixpoint over the files' constraints.

Inclusion constraints in the manner of Andersen's points-to analysis: what flows into a variable flows on to all
that is copied from it; reads and writes of attributes and calls add new flows as their receivers become known.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from itertools import pairwise

from . import library
from .calls import CallResolver
from .facts import ANY_KEY, NOTHING, FileFacts
from .modules import ModuleTable
from .symbols import WRAPPERS, canonical
from .values import (
    Annotated,
    Bound,
    ClassValue,
    Constant,
    Container,
    Derived,
    External,
    FunctionValue,
    Instance,
    ModuleValue,
    Opaque,
    Optimizer,
    SuperValue,
    Unknown,
    Value,
    Wrapped,
)

TRACED = (Wrapped, Annotated, Derived, Optimizer)
"""Values whose way through the program is remembered, for provenance."""

_DEEPEST_NAME = 8


class Flow(CallResolver):
    """The constraints of all files, numbered together, and their solution."""

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
        self.points_to: list[set[int] | None] = [None] * variables
        self.copies: dict[int, list[int]] = {}
        self.loads: dict[int, list[tuple[int, str]]] = {}
        self.stores: dict[int, list[tuple[str, int]]] = {}
        self.binds: dict[int, list[tuple[int, Value]]] = {}
        self.fields: dict[tuple[int, str], int] = {}
        self.values: list[Value] = []
        self.ids: dict[Value, int] = {}
        self.sources: dict[tuple[int, int], int] = {}
        self.work: deque[tuple[int, set[int]]] = deque()
        self.instances: dict[ClassValue, set[Instance]] = {}
        super().__init__()
        self.seed_names()
        self.solve()
        self.seed_calls()
        self.solve()
        self.seed_receivers()
        self.solve()

    # --- building -----------------------------------------------------------------------------------------

    def seed_names(self) -> None:
        """Everything but calls: imports, definitions, constants, assignments, attributes."""
        for index, file in enumerate(self.files):
            offset = self.variable_offsets[index]
            for to, origin in file.copies:
                self.copies.setdefault(origin + offset, []).append(to + offset)
            for to, base, attribute in file.loads:
                self.loads.setdefault(base + offset, []).append((to + offset, attribute))
            for base, attribute, origin in file.stores:
                self.stores.setdefault(base + offset, []).append((attribute, origin + offset))
        for index, file in enumerate(self.files):
            offset = self.variable_offsets[index]
            for variable, value in file.constants:
                self.add(variable + offset, Constant(value, type(value).__name__))
            for variable, kind in file.containers:
                self.add(variable + offset, Container(variable + offset, kind))
            for variable, function in file.function_values:
                self.add(variable + offset, FunctionValue(index, function))
            for variable, cls in file.class_values:
                self.add(variable + offset, ClassValue(index, cls))
            for name, variable in file.names.items():
                if name not in file.defined:
                    self.bind_undefined(index, name, variable + offset)
            for variable, module, name in file.imports:
                self.bind_import(index, variable + offset, module, name)

    def bind_undefined(self, file: int, name: str, variable: int) -> None:
        """A name that its module never assigns: from a star import, or a builtin."""
        found = False
        for star in self.files[file].stars:
            target = self.modules.find(file, star)
            if target is not None:
                exported = self.exported(target, name, set())
                if exported is not None:
                    self.connect(exported, variable)
                    found = True
            elif not star.startswith(".") and not name.startswith("_"):
                self.add(variable, External(canonical(f"{star}.{name}")))
        if not found and (name == "super" or not self.files[file].stars or name in _BUILTINS):
            self.add(variable, External(f"builtins.{name}"))

    def exported(self, file: int, name: str, seen: set[int]) -> int | None:
        """The variable of a module-level name, looked for through the module's own star imports."""
        if file in seen:
            return None
        seen.add(file)
        facts = self.files[file]
        if name in facts.defined:
            return facts.names[name] + self.variable_offsets[file]
        for star in facts.stars:
            target = self.modules.find(file, star)
            if target is not None:
                found = self.exported(target, name, seen)
                if found is not None:
                    return found
        return None

    def bind_import(self, file: int, variable: int, module: str, name: str | None) -> None:
        target = self.modules.find(file, module)
        if name is None:
            if target is not None:
                self.add(variable, ModuleValue(target))
            else:
                self.add(variable, External(canonical(module)))
            return
        if target is not None:
            exported = self.exported(target, name, set())
            if exported is not None:
                self.connect(exported, variable)
        submodule = self.modules.find(file, f"{module}.{name}" if module.strip(".") else f"{module}{name}")
        if submodule is not None:
            self.add(variable, ModuleValue(submodule))
        elif target is None or self.exported(target, name, set()) is None:
            dotted = ".".join(self.modules.absolute(file, module)) if module.startswith(".") else module
            full = canonical(f"{dotted}.{name}")
            self.add(variable, External(full))
            if target is not None:
                for star in self.files[target].stars:
                    if self.modules.find(target, star) is None and not star.startswith("."):
                        self.add(variable, External(canonical(f"{star}.{name}")))

    def seed_calls(self) -> None:
        """Calls, once classes and their bases are known, and what annotations say."""
        for index, file in enumerate(self.files):
            offset = self.variable_offsets[index]
            for position, call in enumerate(file.calls):
                self.register_call(self.call_offsets[index] + position, offset, call)
            for variable, annotation in file.annotations:
                for value in self.values_of(annotation + offset):
                    name = value.name if isinstance(value, External) else None
                    kind = WRAPPERS.get(name or "") or (
                        self.wrapper_kind(value) if isinstance(value, ClassValue) else None
                    )
                    if kind is not None:
                        self.add(variable + offset, Annotated(kind))

    def seed_receivers(self) -> None:
        """Gives the methods of classes that nothing instantiates a receiver of their own class."""
        for index, file in enumerate(self.files):
            for position in range(len(file.classes)):
                cls = ClassValue(index, position)
                if not self.instances.get(cls):
                    self.new_instance(cls, -1)

    def seed_unknown(self, relevant: Iterable[int]) -> None:
        """Marks the parameters in these files that nothing in the repository passes."""
        for index in relevant:
            offset = self.variable_offsets[index]
            for position, function in enumerate(self.files[index].functions):
                value = FunctionValue(index, position)
                if value in self.called:
                    continue
                parameters = [*function.positional, *function.keyword_only]
                if function.owner_class != NOTHING and function.binding != "static":
                    parameters = parameters[1:]
                for _, variable in parameters:
                    self.add(variable + offset, Unknown(variable + offset))
        self.solve()

    # --- solving ------------------------------------------------------------------------------------------

    def identify(self, value: Value) -> int:
        number = self.ids.get(value)
        if number is None:
            number = self.ids[value] = len(self.values)
            self.values.append(value)
        return number

    def add(self, variable: int, value: Value) -> None:
        self.add_all(variable, (self.identify(value),))

    def add_all(self, variable: int, values: Iterable[int], source: int = NOTHING) -> None:
        held = self.points_to[variable]
        if held is None:
            held = self.points_to[variable] = set()
        new = set(values) - held
        if not new:
            return
        held |= new
        if source != NOTHING:
            for value in new:
                if isinstance(self.values[value], TRACED):
                    self.sources.setdefault((variable, value), source)
        self.work.append((variable, new))

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

    def solve(self) -> None:
        """Runs until nothing flows any more."""
        work = self.work
        while work:
            variable, new = work.popleft()
            for to in self.copies.get(variable, ()):
                self.add_all(to, new, variable)
            loads, stores = self.loads.get(variable), self.stores.get(variable)
            binds, calls = self.binds.get(variable), self.calls_on.get(variable)
            if not (loads or stores or binds or calls):
                continue
            for number in new:
                value = self.values[number]
                for to, attribute in loads or ():
                    self.load(value, attribute, to, variable)
                for attribute, origin in stores or ():
                    self.store(value, attribute, origin)
                for to, receiver in binds or ():
                    self.bind(value, to, receiver, variable)
                for call in list(calls or ()):
                    self.call(call, value, variable)

    def load_later(self, base: int, attribute: str, to: int) -> None:
        """Reads ``attribute`` of everything that ``base`` holds, now and later."""
        readers = self.loads.setdefault(base, [])
        if (to, attribute) in readers:
            return
        readers.append((to, attribute))
        for number in list(self.points_to[base] or ()):
            self.load(self.values[number], attribute, to, base)

    def store_later(self, base: int, attribute: str, origin: int) -> None:
        """Writes ``attribute`` of everything that ``base`` holds, now and later."""
        writers = self.stores.setdefault(base, [])
        if (attribute, origin) in writers:
            return
        writers.append((attribute, origin))
        for number in list(self.points_to[base] or ()):
            self.store(self.values[number], attribute, origin)

    def load(self, value: Value, attribute: str, to: int, base: int) -> None:
        """``to`` receives ``value.attribute`` (or an element, for a name in brackets)."""
        if isinstance(value, External):
            name = f"{value.name}.{attribute}"
            if attribute[0] != "[" and name.count(".") <= _DEEPEST_NAME:
                self.add(to, External(canonical(name)))
        elif isinstance(value, ModuleValue):
            self.load_module(value, attribute, to)
        elif isinstance(value, Container):
            self.load_element(value, attribute, to)
        elif isinstance(value, ClassValue):
            self.load_member(value, attribute, to, None)
        elif isinstance(value, Instance):
            self.connect(self.field(value, attribute), to)
            if attribute[0] != "[":
                self.load_member(value.cls, attribute, to, value)
            self.load_derived(value, attribute, to)
        elif isinstance(value, SuperValue):
            for receiver in self.values_of(value.receiver):
                for base_class in self.ancestors(value.cls)[1:]:
                    if self.load_own_member(base_class, attribute, to, receiver):
                        break
        elif isinstance(value, Derived):
            self.load_from_derived(value, attribute, to, base)
        elif isinstance(value, Wrapped):
            inner = self.field(value, "module")
            self.connect(inner if attribute == "module" else self.field(value, attribute), to)
            if attribute == "no_sync":
                self.add_all(to, (self.identify(Derived("no_sync", value)),), base)
            elif attribute != "module":
                self.load_later(inner, attribute, to)
        elif isinstance(value, (Opaque, Optimizer, Annotated, Bound, Unknown)):
            self.connect(self.field(value, attribute), to)
            if isinstance(value, Unknown):
                self.add(to, value)
            self.load_derived(value, attribute, to)

    def load_derived(self, value: Value, attribute: str, to: int) -> None:
        if attribute == "no_sync":
            self.add(to, Derived("no_sync", value))

    def load_from_derived(self, value: Derived, attribute: str, to: int, base: int) -> None:
        kind = value.kind
        if attribute[0] == "[" or attribute in ("data", "values", "items", "keys"):
            self.add_all(to, (self.identify(value),), base)
        elif kind == "parameters" and attribute in ("grad", "main_grad"):
            self.add_all(to, (self.identify(Derived("gradients", value.owner)),), base)
        elif kind == "modules" and attribute in ("weight", "bias"):
            self.add_all(to, (self.identify(Derived("parameters", value.owner)),), base)

    def load_module(self, value: ModuleValue, attribute: str, to: int) -> None:
        exported = self.exported(value.file, attribute, set())
        if exported is not None:
            self.connect(exported, to)
        parts = self.modules.parts[value.file]
        submodule = self.modules.files.get((*parts, attribute))
        if submodule is not None:
            self.add(to, ModuleValue(submodule))
        elif exported is None:
            for star in self.files[value.file].stars:
                if self.modules.find(value.file, star) is None and not star.startswith("."):
                    self.add(to, External(canonical(f"{star}.{attribute}")))

    def load_element(self, value: Container, attribute: str, to: int) -> None:
        if attribute == ANY_KEY:
            self.connect(self.field(value, "[any]"), to)
        elif attribute[0] == "[":
            self.connect(self.field(value, attribute), to)
            self.connect(self.field(value, ANY_KEY), to)
        else:
            self.connect(self.field(value, attribute), to)
            return
        self.load_later(self.field(value, "**"), attribute, to)

    def store(self, value: Value, attribute: str, origin: int) -> None:
        """``value.attribute`` (or an element) receives what ``origin`` holds."""
        if isinstance(value, ModuleValue):
            exported = self.exported(value.file, attribute, set())
            if exported is not None:
                self.connect(origin, exported)
        elif isinstance(value, Wrapped) and attribute != "module":
            self.connect(origin, self.field(value, attribute))
            self.store_later(self.field(value, "module"), attribute, origin)
        elif not isinstance(value, (External, Constant)):
            self.connect(origin, self.field(value, attribute))
            if attribute[0] == "[":
                self.connect(origin, self.field(value, "[any]"))

    def bind(self, value: Value, to: int, receiver: Value, base: int) -> None:
        """A class member read off an object: functions become methods, properties are called."""
        if not isinstance(value, FunctionValue):
            self.add_all(to, (self.identify(value),), base)
            return
        function = self.files[value.file].functions[value.index]
        if function.binding == "static":
            self.add(to, value)
        elif function.binding == "property":
            self.pass_receiver(value, receiver)
            self.connect(function.returns + self.variable_offsets[value.file], to)
        else:
            self.add(to, Bound(value, receiver.cls if function.binding == "class" and isinstance(receiver, Instance) else receiver))

    def values_of(self, variable: int) -> list[Value]:
        """What a variable may hold, in a stable order."""
        held = self.points_to[variable] if variable != NOTHING else None
        return [self.values[number] for number in sorted(held or ())]

    def chain(self, variable: int, value: Value) -> list[int]:
        """The variables through which a traced value came here, nearest first."""
        number = self.ids.get(value)
        if number is None:
            return [variable]
        chain = [variable]
        while (source := self.sources.get((chain[-1], number))) is not None and len(chain) < 200:
            chain.append(source)
        return [this for this, following in pairwise([*chain, NOTHING]) if this != following]


_BUILTINS = frozenset(dir(__builtins__) if not isinstance(__builtins__, dict) else __builtins__)
__all__ = ["Flow", "library"]
