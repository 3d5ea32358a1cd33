"""Attributes of values: modules, classes and their bases, instances, containers, wrapped models."""

from __future__ import annotations

from collections.abc import Iterator

from ..facts.facts import ANY_KEY, NOTHING
from ..facts.symbols import WRAPPERS, canonical
from . import library
from .solver import Solver
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

VALUES = "[values]"
"""The elements of what is made a dictionary: of pairs the second ones, where pairs are told from others."""
WRAPPED = "[wrapped]"
"""What a subclass of a wrapper hands on to the wrapper's own constructor."""
_DEEPEST_NAME = 8


def is_anything(value: Value) -> bool:
    """Whether a value stands for whatever the outside may pass.

    Its attributes are shared by name: what is stored on one unknown object may be read off another.
    """
    return isinstance(value, Unknown) and value.variable == NOTHING


class Objects(Solver):
    """What reading or writing an attribute (or an element) of each kind of value means."""

    instances: dict[ClassValue, set[Instance]]
    dictionaries: dict[Value, Container]
    """Objects whose attributes are read as a dictionary."""
    getters: dict[Value, int]
    """The variables that hold the functions of ``property(function)``."""
    super_reads: dict[int, dict[tuple[ClassValue, str, int], None]]
    """What is read of ``super()``, by the variable of the object that the method runs on."""
    _ancestors: dict[ClassValue, list[ClassValue]]
    packages: dict[str, tuple[str, ...]]
    """Folders without a file of their own that are imported as packages, by name."""

    # --- reading and writing ------------------------------------------------------------------------------

    def load_later(self, base: int, attribute: str, to: int) -> None:
        """Reads ``attribute`` of everything that ``base`` holds, now and later."""
        readers = self.loads.setdefault(base, {})
        if (to, attribute) in readers:
            return
        readers[to, attribute] = None
        for number in self.points_to[base] or ():
            self.load(self.values[number], attribute, to, base)

    def read_of_super(self, value: SuperValue, attribute: str, to: int) -> None:
        """Reads what ``super()`` gives of every object that the method runs on, now and later."""
        reads = self.super_reads.setdefault(value.receiver, {})
        if (value.cls, attribute, to) not in reads:
            reads[value.cls, attribute, to] = None
            for receiver in self.values_of(value.receiver):
                self.load_from_base(value.cls, attribute, to, receiver)

    def load_from_base(self, cls: ClassValue, attribute: str, to: int, receiver: Value) -> None:
        """``to`` receives what the nearest base of a class has under a name; for `WRAPPED`, it is what a wrapper holds."""
        if attribute == WRAPPED:
            self.connect(to, self.field(receiver, "module"))
            return
        if any(self.load_own_member(base_class, attribute, to, receiver) for base_class in self.ancestors(cls)[1:]):
            return
        if isinstance(receiver, ClassValue):  # `super().from_pretrained(...)` in a class method
            for base in self.external_bases(cls):
                self.add(to, External(canonical(f"{base}.{attribute}")))

    def store_later(self, base: int, attribute: str, origin: int) -> None:
        """Writes ``attribute`` of everything that ``base`` holds, now and later."""
        writers = self.stores.setdefault(base, {})
        if (attribute, origin) in writers:
            return
        writers[attribute, origin] = None
        for number in self.points_to[base] or ():
            self.store(self.values[number], attribute, origin)

    def load(self, value: Value, attribute: str, to: int, base: int) -> None:
        """``to`` receives ``value.attribute`` (or an element, for a name in brackets)."""
        if attribute == VALUES and not isinstance(value, Derived):
            attribute = ANY_KEY
        if isinstance(value, External):
            name = f"{value.name}.{attribute}"
            module = self.modules.files.get((*self.packages[value.name], attribute)) if value.name in self.packages else None
            if module is not None:
                self.add(to, ModuleValue(module))
            elif attribute[0] != "[" and name.count(".") <= _DEEPEST_NAME:
                self.add(to, External(canonical(name)))
            elif value.name.endswith(".__dict__") or _is_class_name(value.name):
                self.add(to, value)  # Dataset[Batch] is Dataset
        elif isinstance(value, ModuleValue):
            self.load_module(value, attribute, to)
        elif isinstance(value, Container):
            self.load_element(value, attribute, to)
        elif isinstance(value, ClassValue):
            if attribute[0] != "[":
                self.load_member(value, attribute, to, value)
            elif not any(base.startswith("enum.") for base in self.external_bases(value)):
                self.add(to, value)  # Unit[Batch] is Unit
        elif isinstance(value, Instance):
            self.connect(self.field(value, attribute), to)
            if attribute == "_modules":
                self.add(to, self.attributes_of(value))
            elif attribute[0] != "[":
                self.load_member(value.cls, attribute, to, value)
            self.load_derived(value, attribute, to)
        elif isinstance(value, SuperValue):
            self.read_of_super(value, attribute, to)
        elif isinstance(value, Derived):
            self.load_from_derived(value, attribute, to, base)
        elif isinstance(value, Wrapped):
            inner = self.field(value, "module")
            self.connect(inner if attribute == "module" else self.field(value, attribute), to)
            if attribute == "no_sync":
                self.add(to, Derived("no_sync", value), base)
            elif attribute != "module":
                self.load_later(inner, attribute, to)
        elif is_anything(value):
            self.add(to, value)
            if attribute[0] != "[":
                self.connect(self.field(value, attribute), to)
        elif isinstance(value, (Opaque, Optimizer, Annotated, Bound, Unknown)):
            self.connect(self.field(value, attribute), to)
            self.load_derived(value, attribute, to)
            if isinstance(value, Opaque) and value.name.startswith("torch.nn.") and attribute in ("weight", "bias"):
                self.add(to, Derived("parameters", value), base)
            if isinstance(value, Opaque) and attribute[0] == "[" and value.name in library.MODULES_OF_MODULES:
                self.connect(self.field(value, "[any]"), to)

    def attributes_of(self, value: Instance) -> Container:
        """A dictionary of all that is, and will be, in the attributes of an object: its parts, where it is a module."""
        known = self.dictionaries.get(value)
        if known is not None:
            return known
        found = self.dictionaries[value] = Container(self.field(value, "[attributes]"), "dict")
        owner = self.identify(value)
        for name in [name for number, name in list(self.fields) if number == owner and name.isidentifier()]:
            self.store(found, f"[{name}]", self.field(value, name))
        return found

    def load_derived(self, value: Value, attribute: str, to: int) -> None:
        if attribute == "no_sync":
            self.add(to, Derived("no_sync", value))

    def load_from_derived(self, value: Derived, attribute: str, to: int, base: int) -> None:
        kind = value.kind
        if value.pairs and attribute[0] == "[":
            is_pair = value.pairs == 2 and (attribute == ANY_KEY or attribute[1:-1].isdigit())
            if is_pair or value.pairs == 2 or attribute != "[0]":  # the first of a pair is a name, a text
                self.add(to, Derived(kind, value.owner, pairs=1 if is_pair else 0), base)
        elif attribute[0] == "[" or attribute in ("data", "values", "items", "keys"):
            self.add(to, value, base)
        elif kind == "parameters" and attribute in ("grad", "main_grad"):
            self.add(to, Derived("gradients", value.owner), base)
        elif kind == "modules" and attribute in ("weight", "bias"):
            self.add(to, Derived("parameters", value.owner), base)

    def load_module(self, value: ModuleValue, attribute: str, to: int) -> None:
        if attribute == "__dict__":
            self.add(to, value)
            return
        if attribute[0] == "[":
            for name in dict.fromkeys(self._functions_and_classes(value.file, set())):
                member = self.exported(value.file, name, set())
                if member is not None:
                    self.connect(member, to)
            return
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
        elif not isinstance(value, (External, Constant)) and not (is_anything(value) and attribute[0] == "["):
            self.connect(origin, self.field(value, attribute))
            if attribute[0] == "[":
                self.connect(origin, self.field(value, "[any]"))
            elif value in self.dictionaries:
                self.store(self.dictionaries[value], f"[{attribute}]", origin)

    def exported(self, file: int, name: str, seen: set[int]) -> int | None:
        """The variable of a module-level name, looked for through the module's own star imports."""
        if file in seen:
            return None
        seen.add(file)
        facts = self.files[file]
        if name in facts.defined and name in facts.names:
            return facts.names[name] + self.variable_offsets[file]
        for star in facts.stars:
            target = self.modules.find(file, star)
            if target is not None:
                found = self.exported(target, name, seen)
                if found is not None:
                    return found
        return None

    def _functions_and_classes(self, file: int, seen: set[int]) -> Iterator[str]:
        """The names in a module that are functions and classes of it, or come from modules of the repository."""
        if file in seen:
            return
        seen.add(file)
        facts = self.files[file]
        yield from (function.name for function in facts.functions if function.owner_class == NOTHING)
        yield from (cls.name for cls in facts.classes)
        yield from (item.name for item in facts.imports if item.name and self.modules.find(file, item.module) is not None)
        for star in facts.stars:
            target = self.modules.find(file, star)
            if target is not None:
                yield from self._functions_and_classes(target, seen)

    # --- classes ------------------------------------------------------------------------------------------

    def bind(self, value: Value, to: int, receiver: Value, base: int) -> None:
        """A class member read off an object or a class: functions become methods, properties are called."""
        if value in self.getters and isinstance(receiver, Instance):
            for function in self.values_of(self.getters[value]):
                if isinstance(function, FunctionValue):
                    self.pass_receiver(function, receiver)
                    returned = self.files[function.file].functions[function.index].returns
                    self.connect(returned + self.variable_offsets[function.file], to)
            return
        if not isinstance(value, FunctionValue):
            self.add(to, value, base)
            return
        function = self.files[value.file].functions[value.index]
        if function.binding == "static" or (isinstance(receiver, ClassValue) and function.binding != "class"):
            self.add(to, value)
        elif function.binding == "property":
            self.pass_receiver(value, receiver)
            self.connect(function.returns + self.variable_offsets[value.file], to)
        else:
            bound_to = receiver.cls if function.binding == "class" and isinstance(receiver, Instance) else receiver
            self.add(to, Bound(value, bound_to))

    def pass_receiver(self, function: FunctionValue, receiver: object) -> None:
        facts = self.files[function.file].functions[function.index]
        if facts.positional:
            variable = facts.positional[0][1] + self.variable_offsets[function.file]
            self.add(variable, receiver)  # pyright: ignore[reportArgumentType]

    def new_instance(self, cls: ClassValue, site: int) -> Instance:
        """Registers an object of a class and makes it the receiver of the class's methods."""
        instance = Instance(cls, site)
        known = self.instances.setdefault(cls, set())
        if instance not in known:
            known.add(instance)
            for ancestor in self.ancestors(cls):
                facts = self.files[ancestor.file].classes[ancestor.index]
                for variable in facts.members.values():
                    for member in self.values_of(variable + self.variable_offsets[ancestor.file]):
                        if isinstance(member, FunctionValue):
                            function = self.files[member.file].functions[member.index]
                            if function.binding not in ("static", "class"):
                                self.pass_receiver(member, instance)
        return instance

    def ancestors(self, cls: ClassValue) -> list[ClassValue]:
        """The class and its bases in the repository, nearest first."""
        cached = self._ancestors.get(cls)
        if cached is not None:
            return cached
        found: list[ClassValue] = []
        pending = [cls]
        while pending:
            current = pending.pop(0)
            if current in found:
                continue
            found.append(current)
            offset = self.variable_offsets[current.file]
            for base in self.files[current.file].classes[current.index].bases:
                if base != NOTHING:
                    pending.extend(v for v in self.values_of(base + offset) if isinstance(v, ClassValue))
        self._ancestors[cls] = found
        return found

    def external_bases(self, cls: ClassValue) -> list[str]:
        """Names of the bases, near and far, that are not in the repository."""
        names: list[str] = []
        for ancestor in self.ancestors(cls):
            offset = self.variable_offsets[ancestor.file]
            for base in self.files[ancestor.file].classes[ancestor.index].bases:
                if base != NOTHING:
                    names.extend(v.name for v in self.values_of(base + offset) if isinstance(v, External))
        return names

    def optimizer_base(self, cls: ClassValue) -> str | None:
        """The name of the optimizer outside of the repository that a class derives from."""
        return next((name for name in self.external_bases(cls) if library.is_optimizer_class(name)), None)

    def wrapper_kind(self, cls: Value) -> str | None:
        """FSDP1 or DDP for a subclass of a wrapper."""
        if not isinstance(cls, ClassValue):
            return None
        return next((WRAPPERS[name] for name in self.external_bases(cls) if name in WRAPPERS), None)

    def load_member(self, cls: ClassValue, name: str, to: int, receiver: Value) -> bool:
        """Reads a class-level name through the bases, off an object or a class; False when no base in the repository has it."""
        for ancestor in self.ancestors(cls):
            if self.load_own_member(ancestor, name, to, receiver):
                return True
        if isinstance(receiver, ClassValue):
            for base in self.external_bases(cls):
                self.add(to, External(canonical(f"{base}.{name}")))
        return False

    def members_of(self, cls: ClassValue, name: str) -> list[Value]:
        """What the class, or the nearest of its bases in the repository that defines the name, has under it."""
        for ancestor in self.ancestors(cls):
            variable = self.files[ancestor.file].classes[ancestor.index].members.get(name)
            if variable is not None:
                return self.values_of(variable + self.variable_offsets[ancestor.file])
        return []

    def has_member(self, cls: ClassValue, name: str) -> bool:
        """Whether a class or one of its bases in the repository defines a name."""
        return any(name in self.files[a.file].classes[a.index].members for a in self.ancestors(cls))

    def load_own_member(self, cls: ClassValue, name: str, to: int, receiver: Value) -> bool:
        member = self.files[cls.file].classes[cls.index].members.get(name)
        if member is None:
            return False
        variable = member + self.variable_offsets[cls.file]
        entry = (variable, to, self.identify(receiver))
        if entry not in self.bound:
            self.bound.add(entry)
            self.binds.setdefault(variable, []).append((to, receiver))
            for value in self.values_of(variable):
                self.bind(value, to, receiver, variable)
        return True


def _is_class_name(name: str) -> bool:
    """Whether the name of something outside of the repository is spelled as classes are: ``typing.Generic``, not ``ACT2FN``."""
    last = name.rpartition(".")[2]
    return last[:1].isupper() and not last.isupper() and "_" not in last
