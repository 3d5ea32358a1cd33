"""Calls: arguments to parameters, returns to results, and what calls of outside code give back."""

from __future__ import annotations

from ..facts.facts import ANY_KEY, NOTHING, Call, FunctionFacts
from ..facts.symbols import CONSTRUCTORS, canonical
from . import library
from .named_attributes import READ, WRITTEN, NamedAttributes
from .objects import VALUES, WRAPPED, is_anything
from .values import (
    MODEL_LIKE,
    UNKNOWN,
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

_OF_ELEMENTS = frozenset(f"builtins.{name}" for name in ("next", "max", "min", "sum"))


class Calls(NamedAttributes):
    """The part of the flow analysis that deals with calls."""

    literals: dict[int, object]
    """Variables that hold what is written and nothing else: literals, and parameters of copied bodies that get one."""
    calls: list[Call]
    wrapped_models: dict[Wrapped, int]
    """The variables of what is wrapped."""
    calls_on: dict[int, list[int]]
    called: dict[FunctionValue, set[int]]
    """Functions and the calls that reach them."""
    callees: dict[int, set[FunctionValue]]
    read_and_called: dict[int, list[int]]
    """Calls of attributes, and the variables that hold what the attributes are."""
    resolved: set[tuple[object, ...]]

    def call_at(self, site: int) -> Call:
        """The call of this number."""
        return self.calls[site]

    def body_for(self, site: int, value: FunctionValue, call: Call, skip: int) -> int:
        """What has to be added to the numbers of a function's variables to get those that a call fills and reads."""
        return self.variable_offsets[value.file]

    def register_call(self, site: int, call: Call) -> None:
        """Makes a call, now and whenever more is known of what it calls."""
        if call.function == NOTHING:
            return
        self.calls_on.setdefault(call.function, []).append(site)
        for value in self.values_of(call.function):
            self.call(site, value, call.function)

    def call(self, site: int, value: Value, variable: int) -> None:
        """A value arrived where it is called, or where one of its methods is."""
        call = self.call_at(site)
        if call.method is not None and variable == call.function:
            self.call_method(site, call, value)
        else:
            self.call_value(site, call, value)

    # --- methods ------------------------------------------------------------------------------------------

    def call_method(self, site: int, call: Call, value: Value) -> None:
        method = call.method or ""
        if isinstance(value, External):
            self.call_external(site, call, canonical(f"{value.name}.{method}"))
            return
        if isinstance(value, Container):
            self.call_container(call, value, method)
            return
        if isinstance(value, Derived):
            if value.kind == "modules" and library.DERIVED.get(method) in ("parameters", "buffers", "state_dict"):
                self.add(call.result, derived(method, value.owner), call.function)
            elif method in library.STAYS_DERIVED:
                self.add(call.result, derived(method, value.owner) if method.startswith("named_") else value, call.function)
            elif value.kind in library.TENSORS and method in library.TENSOR_MATH:
                self.add(call.result, Derived("statistic", value.owner), call.function)
            return
        if isinstance(value, Constant):
            return
        if is_anything(value):
            self.add(call.result, value)
            return
        if isinstance(value, SuperValue):
            self.call_super(site, call, value, method)
        else:
            self.call_attribute(site, value, method)
        if method in library.ADDS_MODULE and isinstance(value, MODEL_LIKE):
            self.access_later(site, call._replace(arguments=(call.function, *call.arguments)), WRITTEN)
        if isinstance(value, Opaque) and value.name in library.MODULES_OF_MODULES:
            if method in library.CONTAINER_WRITES:
                self.hold_modules(value, call)
            elif method == "items":
                self.give_pairs(call, value)
            elif method in library.CONTAINER_READS:
                self.add(call.result, value)
        if isinstance(value, MODEL_LIKE):
            self.call_model_method(call, value, method)
        elif isinstance(value, Optimizer) and method == "state_dict":
            self.add(call.result, Derived("optimizer_state", value), call.function)

    def call_attribute(self, site: int, value: Value, method: str) -> None:
        """Calls whatever the attribute of this name holds, now and later."""
        if (site, value) in self.resolved:
            return
        self.resolved.add((site, value))
        function = self.fresh()
        self.calls_on[function] = [site]
        self.read_and_called.setdefault(site, []).append(function)
        self.load(value, method, function, self.call_at(site).function)

    def call_super(self, site: int, call: Call, value: SuperValue, method: str) -> None:
        self.call_attribute(site, value, method)
        kind = self.wrapper_kind(value.cls)
        if kind is not None and method == "__init__" and call.arguments:
            self.read_of_super(value, WRAPPED, call.arguments[0])

    def call_model_method(self, call: Call, value: Value, method: str) -> None:
        if method in library.RETURN_SELF:
            self.add(call.result, value, call.function)
        elif method in library.DERIVED:
            self.add(call.result, derived(method, value), call.function)

    def call_container(self, call: Call, value: Container, method: str) -> None:
        if method in library.CONTAINER_WRITES:
            for argument in call.arguments:
                if argument == NOTHING:
                    continue
                if method in ("extend", "update"):
                    self.load_later(argument, VALUES if method == "update" else ANY_KEY, self.field(value, ANY_KEY))
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
                    if method == "setdefault":
                        self.store(value, self.constant_key(call), argument)
        elif method in library.CONTAINER_READS:
            if method == "items":
                self.give_pairs(call, value)
            elif method == "copy":
                self.add(call.result, value)
            else:
                self.load(value, ANY_KEY, call.result, call.function)
                self.add(call.result, Container(call.result, "list"))
                self.load(value, ANY_KEY, self.field(Container(call.result, "list"), "[any]"), call.function)

    def give_pairs(self, call: Call, value: Value) -> None:
        """``for key, element in holder.items()``"""
        pair = Container(call.result, "items")
        self.add(call.result, pair)
        self.load(value, ANY_KEY, self.field(pair, "[1]"), call.function)
        inner = Container(-call.result - 2, "tuple")
        self.connect(self.field(pair, "[1]"), self.field(inner, "[1]"))
        self.add(self.field(pair, "[any]"), inner)

    def note_literal(self, variable: int, value: object) -> None:
        """A text or a number is written there: what is read by such a key is told apart."""
        if isinstance(value, (str, int)):
            self.literals[variable] = value

    def constant_key(self, call: Call) -> str:
        key = self.literals.get(call.arguments[0]) if call.arguments else None
        return ANY_KEY if key is None else f"[{key}]"

    # --- plain calls --------------------------------------------------------------------------------------

    def call_value(self, site: int, call: Call, value: Value) -> None:
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
            self.add(call.result, value, call.function)
        elif is_anything(value):
            self.add(call.result, value)
        elif isinstance(value, (Opaque, Unknown)):
            self.add(call.result, Opaque(self.copied_for(site), UNKNOWN))  # each call of a factory gives something else

    def call_attribute_of_object(self, site: int, value: Instance, name: str) -> None:
        key = (site, value, name)
        if key in self.resolved:
            return
        self.resolved.add(key)
        function = self.fresh()
        self.calls_on[function] = [site]
        self.load_member(value.cls, name, function, value)

    def pass_arguments(self, site: int, call: Call, value: FunctionValue, receiver: object | None) -> None:
        """Binds a call's arguments to a function's parameters and its return to the result."""
        self.called.setdefault(value, set()).add(self.written_at(site))
        self.callees.setdefault(self.written_at(site), set()).add(value)
        key = (site, value, receiver)
        if key in self.resolved:
            return
        self.resolved.add(key)
        function = self.files[value.file].functions[value.index]
        written = self.variable_offsets[value.file]
        skip = 0
        if receiver is not None:
            self.pass_receiver(value, receiver)
            skip = 1
        self.bind_parameters(call, function, written, skip)
        own = self.body_for(site, value, call, skip)
        if own != written:
            self.bind_parameters(call, function, own, skip)
            if skip and function.positional:
                self.add(function.positional[0][1] + own, receiver)  # pyright: ignore[reportArgumentType]
        self.connect(function.returns + own, call.result)

    def bind_parameters(self, call: Call, function: FunctionFacts, offset: int, skip: int) -> None:
        positional = [variable + offset for _, variable in function.positional[skip:]]
        by_name = {name: variable + offset for name, variable in [*function.positional, *function.keyword_only]}
        in_front = len(call.arguments) if call.starred < 0 else call.starred
        passed = {name for name, _ in function.positional[: skip + in_front]}
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
                    if parameter_name in passed:
                        continue
                    self.load_later(argument, f"[{parameter_name}]", parameter)
                if function.variadic_keywords != NOTHING:
                    self.connect(argument, self.field(Container(function.variadic_keywords + offset, "dict"), "**"))
            elif name in by_name:
                self.connect(argument, by_name[name])
            elif function.variadic_keywords != NOTHING:
                self.store(Container(function.variadic_keywords + offset, "dict"), f"[{name}]", argument)

    def call_partial(self, site: int, call: Call, value: Partial) -> None:
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

    def instantiate(self, site: int, call: Call, cls: ClassValue) -> None:
        instance = self.new_instance(cls, self.written_at(site))
        kind = self.wrapper_kind(cls)
        if kind is not None:
            self.wrap(site, call, kind)
        optimizer = self.optimizer_base(cls)
        if optimizer is not None:
            self.is_own_optimizer(instance, self.build_optimizer(site, call, optimizer))
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

    # --- code outside the repository ----------------------------------------------------------------------

    def call_external(self, site: int, call: Call, name: str) -> None:
        arguments = call.arguments
        first = arguments[0] if arguments else dict(call.keywords).get("module", NOTHING)
        if name in CONSTRUCTORS:
            self.wrap(site, call, CONSTRUCTORS[name])
        elif name in library.PASS_THROUGH:
            for argument in arguments[1:] if name == "typing.cast" else arguments:
                if argument != NOTHING:
                    self.connect(argument, call.result)
            if name == "builtins.next" and len(arguments) > 1:
                self.add(call.result, Unknown(NOTHING))  # a default is not all that an iterator out of sight gives
        elif name in library.COLLECT:
            self.collect(call, name)
        elif library.UNWRAPS.search(name) and arguments and arguments[0] != NOTHING:
            self.connect(arguments[0], call.result)
            self.load_later(arguments[0], "module", call.result)
        elif name == "collections.defaultdict":
            self.collect_by_factory(site, call)
        elif name in library.PARTIAL:
            self.add(call.result, Partial(self.written_at(site)))
        elif name == "builtins.super":
            self.call_builtin_super(call, site)
        elif name in (READ, WRITTEN):
            self.access_later(site, call, name)
        elif name.endswith("multiprocessing.spawn") or name.endswith("multiprocessing.start_processes"):
            self.call_spawn(site, call)
        elif name.startswith("torch.distributed.fsdp.FullyShardedDataParallel.") and first != NOTHING:
            self.call_static_wrapper_method(call, name.rpartition(".")[2], first)
        elif library.is_optimizer(name):
            self.build_optimizer(site, call, name)
        elif name in library.FIELDS:  # of which objects hold what their constructors are given
            if (default := dict(call.keywords).get("default", NOTHING)) != NOTHING:
                self.connect(default, call.result)
        else:
            made = Opaque(self.written_at(site), name)
            if name == "builtins.property" and first != NOTHING:
                self.getters[made] = first
            self.add(call.result, made)
            if name in library.MODULES_OF_MODULES:
                self.hold_modules(made, call)
            elif name in library.NAMESPACES:
                for attribute, argument in call.keywords:
                    if attribute is not None and argument != NOTHING:
                        self.store(made, attribute, argument)
            elif name in library.PARAMETER:
                self.add(call.result, Derived("parameters", made))
            elif name in library.LAID_OUT_ALIKE and first != NOTHING:
                self.connect(first, call.result)
            elif library.is_tensor_math(name):
                for argument in arguments:
                    if argument != NOTHING:
                        self.compute_later(argument, call.result)

    def hold_modules(self, value: Opaque, call: Call) -> None:
        """Modules given to a module that holds modules, one by one or in a list."""
        for argument in call.arguments:
            if argument != NOTHING:
                self.connect(argument, self.field(value, "[any]"))
                self.load_later(argument, ANY_KEY, self.field(value, "[any]"))

    def wrap(self, site: int, call: Call, kind: str) -> None:
        """A wrapper constructor: the result is wrapped, and the model is inside it. No class or function is wrapped."""
        if call.implied:
            return  # a registry's decorator that may give back any of its classes
        model = call.arguments[0] if call.arguments else dict(call.keywords).get("module", NOTHING)
        value = Wrapped(kind, self.written_at(site))
        if model != NOTHING:
            self.connect(model, self.field(value, "module"))
            self.wrapped_models[value] = model
        self.add(call.result, value)

    def call_static_wrapper_method(self, call: Call, method: str, model: int) -> None:
        """``FSDP.optim_state_dict(model, optimizer)`` and its kin: static methods that take the model first."""
        if method in library.DERIVED:
            self.compute_later(model, call.result, library.DERIVED[method])

    def pair_up(self, call: Call, name: str) -> None:
        """``zip`` and ``enumerate``: a container of tuples whose places keep their arguments apart."""
        container, pair = Container(call.result, "list"), Container(-call.result - 2, "tuple")
        self.add(call.result, container)
        self.add(self.field(container, "[any]"), pair)
        first = 1 if name == "builtins.enumerate" else 0
        for place, argument in enumerate(call.arguments, start=first):
            if argument != NOTHING:
                self.load_later(argument, ANY_KEY, self.field(pair, f"[{place}]"))
                self.connect(self.field(pair, f"[{place}]"), self.field(pair, "[any]"))

    def collect(self, call: Call, name: str) -> None:
        if name in ("builtins.zip", "builtins.enumerate"):
            self.pair_up(call, name)
            return
        container = Container(call.result, "list")
        self.add(call.result, container)
        arguments = call.arguments[1:] if name in ("builtins.filter", "builtins.map") else call.arguments
        for argument in arguments:
            if argument != NOTHING:
                self.load_later(argument, VALUES if name in library.DICTIONARIES else ANY_KEY, self.field(container, "[any]"))
                self.connect(self.field(container, "[any]"), self.field(container, ANY_KEY))
                if name == "builtins.dict":
                    self.connect(argument, self.field(container, "**"))
        if name in _OF_ELEMENTS:
            self.connect(self.field(container, "[any]"), call.result)
        for keyword, argument in call.keywords:
            if argument == NOTHING:
                continue
            if keyword is None:
                self.connect(argument, self.field(container, "**"))
            elif name == "builtins.dict":
                self.store(container, f"[{keyword}]", argument)

    def collect_by_factory(self, site: int, call: Call) -> None:
        """``defaultdict(list)``: a dict whose elements its factory makes, besides those that are put in."""
        container = Container(call.result, "dict")
        self.add(call.result, container)
        if not call.arguments or call.arguments[0] == NOTHING:
            return
        made = self.fresh()
        self.store(container, ANY_KEY, made)
        factory = call._replace(result=made, function=call.arguments[0], method=None, arguments=(), keywords=(), starred=-1)
        for value in self.values_of(call.arguments[0]):
            self.call_value(site, factory, value)

    def call_builtin_super(self, call: Call, site: int) -> None:
        file = self.file_of_call(self.written_at(site))
        owner = call.owner
        functions = self.files[file].functions
        if owner < 0 or functions[owner].owner_class == NOTHING or not functions[owner].positional:
            return
        receiver = functions[owner].positional[0][1] + self.variable_offsets[file]
        self.add(call.result, SuperValue(ClassValue(file, functions[owner].owner_class), receiver))

    def call_spawn(self, site: int, call: Call) -> None:
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


def derived(method: str, owner: object) -> Derived:
    """What a method such as ``named_parameters`` takes from a model: things of one kind, or pairs of a name and one."""
    return Derived(library.DERIVED[method], owner, pairs=2 if method.startswith("named_") else 0)
