"""Calls: arguments to parameters, returns to results, and what calls of outside code give back."""

from __future__ import annotations

from typing import TYPE_CHECKING

from . import library
from .facts import ANY_KEY, NOTHING, Call, FunctionFacts
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
    Opaque,
    Optimizer,
    Partial,
    SuperValue,
    Unknown,
    Value,
    Wrapped,
)

if TYPE_CHECKING:
    from .flow import Flow

_MODEL_LIKE = (Instance, Opaque, Wrapped, Annotated, Unknown)


class CallResolver:
    """The part of the flow analysis that deals with calls."""

    def __init__(self) -> None:
        self.calls: list[Call] = []
        self.calls_on: dict[int, list[int]] = {}
        self.methods_on: dict[int, list[int]] = {}
        self.called: dict[FunctionValue, set[int]] = {}
        """Functions and the calls that reach them."""
        self.callees: dict[int, set[FunctionValue]] = {}
        self.resolved: set[tuple[int, int]] = set()
        self._ancestors: dict[ClassValue, list[ClassValue]] = {}

    def register_call(self: Flow, site: int, offset: int, call: Call) -> None:
        """Adds a call with its variables numbered for the whole repository."""
        shifted = Call(
            call.result + offset,
            call.function + offset if call.function != NOTHING else NOTHING,
            call.method,
            tuple(a + offset if a != NOTHING else NOTHING for a in call.arguments),
            tuple((name, a + offset if a != NOTHING else NOTHING) for name, a in call.keywords),
            call.starred,
            call.line,
            call.owner,
        )
        self.calls.append(shifted)
        if shifted.function == NOTHING:
            return
        self.calls_on.setdefault(shifted.function, []).append(site)
        for value in self.values_of(shifted.function):
            self.call(site, value, shifted.function)

    def call(self: Flow, site: int, value: Value, variable: int) -> None:
        """A value arrived where it is called, or where one of its methods is."""
        call = self.calls[site]
        if call.method is not None and variable == call.function:
            self.call_method(site, call, value)
        else:
            self.call_value(site, call, value)

    # --- methods ------------------------------------------------------------------------------------------

    def call_method(self: Flow, site: int, call: Call, value: Value) -> None:
        method = call.method or ""
        if isinstance(value, External):
            self.call_external(site, call, canonical(f"{value.name}.{method}"))
            return
        if isinstance(value, Container):
            self.call_container(call, value, method)
            return
        if isinstance(value, Derived):
            self.add_all(call.result, (self.identify(value),), call.function)
            return
        if isinstance(value, Constant):
            return
        if isinstance(value, SuperValue):
            self.call_super(site, call, value, method)
        else:
            self.call_attribute(site, value, method)
        if isinstance(value, _MODEL_LIKE):
            self.call_model_method(call, value, method)
        elif isinstance(value, Optimizer) and method == "state_dict":
            self.add_all(call.result, (self.identify(Derived("optimizer_state", value)),), call.function)

    def call_attribute(self: Flow, site: int, value: Value, method: str) -> None:
        """Calls whatever the attribute of this name holds, now and later."""
        number = self.identify(value)
        if (site, number) in self.resolved:
            return
        self.resolved.add((site, number))
        function = self.fresh()
        self.calls_on[function] = [site]
        self.load(value, method, function, self.calls[site].function)

    def call_super(self: Flow, site: int, call: Call, value: SuperValue, method: str) -> None:
        self.call_attribute(site, value, method)
        kind = self.wrapper_kind(value.cls)
        if kind is not None and method == "__init__" and call.arguments:
            # A subclass of a wrapper hands the model on to the wrapper's own constructor.
            for receiver in self.values_of(value.receiver):
                self.connect(call.arguments[0], self.field(receiver, "module"))

    def call_model_method(self: Flow, call: Call, value: Value, method: str) -> None:
        number = self.identify(value)
        if method in library.RETURN_SELF:
            self.add_all(call.result, (number,), call.function)
        elif method in library.DERIVED:
            derived = Derived(library.DERIVED[method], value)
            self.add_all(call.result, (self.identify(derived),), call.function)
        elif isinstance(value, Unknown):
            self.add_all(call.result, (number,), call.function)

    def call_container(self: Flow, call: Call, value: Container, method: str) -> None:
        if method in library.CONTAINER_WRITES:
            for argument in call.arguments:
                if argument == NOTHING:
                    continue
                if method in ("extend", "update"):
                    self.load_later(argument, ANY_KEY, self.field(value, ANY_KEY))
                    self.connect(self.field(value, ANY_KEY), self.field(value, "[any]"))
                    if method == "update":
                        self.connect(argument, self.field(value, "**"))
                else:
                    self.store(value, ANY_KEY, argument)
            for name, argument in call.keywords:
                if name is not None and argument != NOTHING:
                    self.store(value, f"[{name}]", argument)
        elif method in ("get", "pop", "setdefault", "__getitem__"):
            self.load(value, self.constant_key(call), call.result, call.function)
            for argument in call.arguments[1:]:
                if argument != NOTHING:
                    self.connect(argument, call.result)
        elif method in library.CONTAINER_READS:
            if method == "items":
                pair = Container(call.result, "items")
                self.add(call.result, pair)
                self.load(value, ANY_KEY, self.field(pair, "[1]"), call.function)
                inner = Container(-call.result - 2, "tuple")
                self.connect(self.field(pair, "[1]"), self.field(inner, "[1]"))
                self.add(self.field(pair, "[any]"), inner)
            elif method == "copy":
                self.add(call.result, value)
            else:
                self.load(value, ANY_KEY, call.result, call.function)
                self.add(call.result, Container(call.result, "list"))
                self.load(value, ANY_KEY, self.field(Container(call.result, "list"), "[any]"), call.function)

    def constant_key(self: Flow, call: Call) -> str:
        for value in self.values_of(call.arguments[0]) if call.arguments else ():
            if isinstance(value, Constant):
                return f"[{value.value}]"
        return ANY_KEY

    # --- plain calls --------------------------------------------------------------------------------------

    def call_value(self: Flow, site: int, call: Call, value: Value) -> None:
        if isinstance(value, FunctionValue):
            self.pass_arguments(site, call, value, None)
        elif isinstance(value, Bound):
            self.pass_arguments(site, call, value.function, value.receiver)
        elif isinstance(value, ClassValue):
            self.instantiate(site, call, value)
        elif isinstance(value, External):
            self.call_external(site, call, value.name)
        elif isinstance(value, Partial):
            self.call_partial(site, call, value)
        elif isinstance(value, Instance):
            for name in ("__call__", "forward"):
                self.call_attribute_of_object(site, value, name)
        elif isinstance(value, Derived) and value.kind == "no_sync":
            self.add_all(call.result, (self.identify(value),), call.function)
        elif isinstance(value, (Opaque, Unknown)):
            self.add(call.result, Opaque(site, "?"))

    def call_attribute_of_object(self: Flow, site: int, value: Instance, name: str) -> None:
        key = (site, self.identify(value) * 2 + (name == "forward") + (1 << 40))
        if key in self.resolved:
            return
        self.resolved.add(key)
        function = self.fresh()
        self.calls_on[function] = [site]
        self.load_member(value.cls, name, function, value)

    def pass_receiver(self: Flow, function: FunctionValue, receiver: object) -> None:
        facts = self.files[function.file].functions[function.index]
        if facts.positional:
            variable = facts.positional[0][1] + self.variable_offsets[function.file]
            self.add(variable, receiver)  # pyright: ignore[reportArgumentType]

    def pass_arguments(self: Flow, site: int, call: Call, value: FunctionValue, receiver: object | None) -> None:
        """Binds a call's arguments to a function's parameters and its return to the result."""
        self.called.setdefault(value, set()).add(site)
        self.callees.setdefault(site, set()).add(value)
        key = (site, self.identify(value) + (1 << 44) + (self.identify(receiver) << 50 if receiver else 0))  # pyright: ignore[reportArgumentType]
        if key in self.resolved:
            return
        self.resolved.add(key)
        function = self.files[value.file].functions[value.index]
        offset = self.variable_offsets[value.file]
        if receiver is not None:
            self.pass_receiver(value, receiver)
        self.bind_parameters(call, function, offset, 1 if receiver is not None else 0)
        self.connect(function.returns + offset, call.result)

    def bind_parameters(self: Flow, call: Call, function: FunctionFacts, offset: int, skip: int) -> None:
        positional = [variable + offset for _, variable in function.positional[skip:]]
        by_name = {name: variable + offset for name, variable in [*function.positional, *function.keyword_only]}
        for index, argument in enumerate(call.arguments):
            if argument == NOTHING:
                continue
            if call.starred >= 0 and index >= call.starred:
                for position, parameter in enumerate(positional[index:]):
                    self.load_later(argument, f"[{position}]", parameter)
                if function.variadic != NOTHING:
                    self.connect(argument, function.variadic + offset)
            elif index < len(positional):
                self.connect(argument, positional[index])
            elif function.variadic != NOTHING:
                container = Container(function.variadic + offset, "tuple")
                self.store(container, f"[{index - len(positional)}]", argument)
        for name, argument in call.keywords:
            if argument == NOTHING:
                continue
            if name is None:
                for parameter_name, parameter in by_name.items():
                    self.load_later(argument, f"[{parameter_name}]", parameter)
                if function.variadic_keywords != NOTHING:
                    self.connect(argument, self.field(Container(function.variadic_keywords + offset, "dict"), "**"))
            elif name in by_name:
                self.connect(argument, by_name[name])
            elif function.variadic_keywords != NOTHING:
                self.store(Container(function.variadic_keywords + offset, "dict"), f"[{name}]", argument)

    def call_partial(self: Flow, site: int, call: Call, value: Partial) -> None:
        """The partial's own arguments go first, then the call's."""
        made = self.calls[value.site]
        merged = call._replace(
            function=made.arguments[0] if made.arguments else NOTHING,
            method=None,
            arguments=(*made.arguments[1:], *call.arguments),
            keywords=(*made.keywords, *call.keywords),
            starred=-1 if made.starred < 0 and call.starred < 0 else max(made.starred - 1, call.starred),
        )
        if merged.function == NOTHING:
            return
        for inner in self.values_of(merged.function):
            if isinstance(inner, FunctionValue | Bound | ClassValue | External):
                self.call_value(site, merged, inner)

    # --- classes ------------------------------------------------------------------------------------------

    def new_instance(self: Flow, cls: ClassValue, site: int) -> Instance:
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

    def instantiate(self: Flow, site: int, call: Call, cls: ClassValue) -> None:
        instance = self.new_instance(cls, site)
        kind = self.wrapper_kind(cls)
        if kind is not None:
            self.wrap(site, call, kind)
        optimizer = next((name for name in self.external_bases(cls) if library.is_optimizer(name)), None)
        if optimizer is not None:
            self.build_optimizer(site, call, optimizer)
        self.add(call.result, instance)
        constructor = self.fresh()
        self.calls_on[constructor] = [site]
        if not self.load_member(cls, "__init__", constructor, instance):
            facts = self.files[cls.file].classes[cls.index]
            fields = [name for ancestor in reversed(self.ancestors(cls)) for name in
                      self.files[ancestor.file].classes[ancestor.index].fields] or facts.fields
            for name, argument in [*zip(fields, call.arguments, strict=False), *call.keywords]:
                if name is not None and argument != NOTHING:
                    self.store(instance, name, argument)

    def ancestors(self: Flow, cls: ClassValue) -> list[ClassValue]:
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

    def external_bases(self: Flow, cls: ClassValue) -> list[str]:
        """Names of the bases, near and far, that are not in the repository."""
        names: list[str] = []
        for ancestor in self.ancestors(cls):
            offset = self.variable_offsets[ancestor.file]
            for base in self.files[ancestor.file].classes[ancestor.index].bases:
                if base != NOTHING:
                    names.extend(v.name for v in self.values_of(base + offset) if isinstance(v, External))
        return names

    def wrapper_kind(self: Flow, cls: Value) -> str | None:
        """FSDP1 or DDP for a subclass of a wrapper."""
        if not isinstance(cls, ClassValue):
            return None
        return next((WRAPPERS[name] for name in self.external_bases(cls) if name in WRAPPERS), None)

    def load_member(self: Flow, cls: ClassValue, name: str, to: int, receiver: Value | None) -> bool:
        """Reads a class-level name through the bases; False when no base in the repository has it."""
        for ancestor in self.ancestors(cls):
            if self.load_own_member(ancestor, name, to, receiver):
                return True
        if receiver is None:
            for base in self.external_bases(cls):
                self.add(to, External(canonical(f"{base}.{name}")))
        return False

    def has_member(self: Flow, cls: ClassValue, name: str) -> bool:
        """Whether a class or one of its bases in the repository defines a name."""
        return any(name in self.files[a.file].classes[a.index].members for a in self.ancestors(cls))

    def load_own_member(self: Flow, cls: ClassValue, name: str, to: int, receiver: Value | None) -> bool:
        member = self.files[cls.file].classes[cls.index].members.get(name)
        if member is None:
            return False
        variable = member + self.variable_offsets[cls.file]
        if receiver is None:
            self.connect(variable, to)
        else:
            entry = (to, receiver)
            binds = self.binds.setdefault(variable, [])
            if entry not in binds:
                binds.append(entry)
                for value in self.values_of(variable):
                    self.bind(value, to, receiver, variable)
        return True

    # --- code outside the repository ----------------------------------------------------------------------

    def call_external(self: Flow, site: int, call: Call, name: str) -> None:
        arguments = call.arguments
        first = arguments[0] if arguments else dict(call.keywords).get("module", NOTHING)
        if name in WRAPPERS:
            self.wrap(site, call, WRAPPERS[name])
        elif name in library.PASS_THROUGH:
            for argument in arguments:
                if argument != NOTHING:
                    self.connect(argument, call.result)
        elif name in library.COLLECT:
            self.collect(call, name)
        elif name in library.PARTIAL:
            self.add(call.result, Partial(site))
        elif name == "builtins.super":
            self.call_builtin_super(call, site)
        elif name in ("builtins.getattr", "builtins.setattr"):
            self.call_dynamic_attribute(call, name)
        elif name.endswith("multiprocessing.spawn") or name.endswith("multiprocessing.start_processes"):
            self.call_spawn(site, call)
        elif name.startswith("torch.distributed.fsdp.FullyShardedDataParallel.") and first != NOTHING:
            self.call_static_wrapper_method(call, name.rpartition(".")[2], first)
        elif library.is_optimizer(name):
            self.build_optimizer(site, call, name)
        else:
            self.add(call.result, Opaque(site, name))

    def wrap(self: Flow, site: int, call: Call, kind: str) -> None:
        """A wrapper constructor: the result is wrapped, and the model is inside it."""
        model = call.arguments[0] if call.arguments else dict(call.keywords).get("module", NOTHING)
        value = Wrapped(kind, site)
        if model != NOTHING:
            self.connect(model, self.field(value, "module"))
        self.add(call.result, value)

    def build_optimizer(self: Flow, site: int, call: Call, name: str) -> None:
        value = Optimizer(site, name)
        parameters = call.arguments[0] if call.arguments else dict(call.keywords).get("params", NOTHING)
        if parameters != NOTHING:
            self.connect(parameters, self.field(value, "params"))
        self.add(call.result, value)

    def call_static_wrapper_method(self: Flow, call: Call, method: str, model: int) -> None:
        """``FSDP.optim_state_dict(model, optimizer)`` and its kin: static methods that take the model first."""
        if method in library.DERIVED:
            for value in self.values_of(model):
                if isinstance(value, _MODEL_LIKE):
                    self.add(call.result, Derived(library.DERIVED[method], value))

    def collect(self: Flow, call: Call, name: str) -> None:
        container = Container(call.result, "list")
        self.add(call.result, container)
        arguments = call.arguments[1:] if name in ("builtins.filter", "builtins.map") else call.arguments
        for argument in arguments:
            if argument != NOTHING:
                self.load_later(argument, ANY_KEY, self.field(container, "[any]"))
                self.connect(self.field(container, "[any]"), self.field(container, ANY_KEY))
                if name == "builtins.dict":
                    self.connect(argument, self.field(container, "**"))
        if name in ("builtins.zip", "builtins.enumerate", "builtins.next", "builtins.max", "builtins.min", "builtins.sum"):
            self.connect(self.field(container, "[any]"), call.result)
        for keyword, argument in call.keywords:
            if argument == NOTHING:
                continue
            if keyword is None:
                self.connect(argument, self.field(container, "**"))
            elif name == "builtins.dict":
                self.store(container, f"[{keyword}]", argument)

    def call_builtin_super(self: Flow, call: Call, site: int) -> None:
        file = self.file_of_call(site)
        owner = call.owner
        functions = self.files[file].functions
        if owner < 0 or functions[owner].owner_class == NOTHING or not functions[owner].positional:
            return
        receiver = functions[owner].positional[0][1] + self.variable_offsets[file]
        self.add(call.result, SuperValue(ClassValue(file, functions[owner].owner_class), receiver))

    def call_dynamic_attribute(self: Flow, call: Call, name: str) -> None:
        if len(call.arguments) < 2 or NOTHING in call.arguments[:2]:
            return
        for key in self.values_of(call.arguments[1]):
            if not isinstance(key, Constant) or not isinstance(key.value, str) or not key.value.isidentifier():
                continue
            if name == "builtins.getattr":
                self.load_later(call.arguments[0], key.value, call.result)
                for default in call.arguments[2:]:
                    if default != NOTHING:
                        self.connect(default, call.result)
            elif len(call.arguments) > 2 and call.arguments[2] != NOTHING:
                self.store_later(call.arguments[0], key.value, call.arguments[2])

    def call_spawn(self: Flow, site: int, call: Call) -> None:
        """``mp.spawn(fn, args=(…))`` calls ``fn(rank, *args)``."""
        keywords = dict(call.keywords)
        function = call.arguments[0] if call.arguments else keywords.get("fn", NOTHING)
        arguments = call.arguments[1] if len(call.arguments) > 1 else keywords.get("args", NOTHING)
        if function == NOTHING:
            return
        passed = call._replace(
            function=function, method=None, keywords=(), starred=1 if arguments != NOTHING else -1,
            arguments=(NOTHING, arguments) if arguments != NOTHING else (),
        )  # fmt: skip
        for value in self.values_of(function):
            self.call_value(site, passed, value)

    def file_of_call(self: Flow, site: int) -> int:
        """Index of the file that holds a call."""
        from bisect import bisect_right

        return bisect_right(self.call_offsets, site) - 1
