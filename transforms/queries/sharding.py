"""What an expression has to do with wrapped models: is it one, is it made from one, which wrapper was it."""

from __future__ import annotations

import ast
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import replace
from functools import cached_property

from ..facts.facts import NOTHING
from ..findings import Step
from ..flow.library import (
    MODULES_OF_MODULES,
    has_no_parameters,
    is_optimizer,
    is_scheduler,
    is_tensor,
    makes_no_modules,
)
from ..flow.values import (
    UNKNOWN,
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
    Partial,
    Unknown,
    Value,
    Wrapped,
)
from .annotated_types import says_no_model
from .answers import Answer, Sharding
from .file import File
from .holders import Holders
from .new_objects import NewObjects
from .object_origins import ObjectOrigins
from .optimizer_objects import optimizers_around
from .partly_seen import unless_loaded, unless_unseen
from .parts_of_self import owner_of_part
from .plain_objects import hands_on, is_plain_object, makes_modules
from .program import Program
from .programs import Programs
from .said import SaidNames

_NO_OBJECTS = (Constant, Container, External, ModuleValue, FunctionValue, ClassValue, Partial, Bound)
"""What surely is no model: literals, functions, classes, modules of Python."""


class ShardingQueries:
    """Answers about one program's values. In blind use every answer that a value would give is *unknown*.

    ``kept`` says of a value in a wrapper that the wrapper stays.
    """

    def __init__(self, program: Program, programs: Programs, kept: Callable[[Wrapped | Annotated], bool]) -> None:
        self.program = program
        self.programs = programs
        self.kept = kept
        self._said = SaidNames()
        self._origins = ObjectOrigins(program.flow)
        self._of_called: dict[ast.Call, Sharding] = {}

    @cached_property
    def _handed_to_wrappers(self) -> dict[Value, set[str]]:
        """The modules that wrappers are called with, and which wrappers."""
        handed: dict[Value, set[str]] = {}
        for inner, wrapped, _ in self._wrapped_modules():
            handed.setdefault(inner, set()).add(wrapped.kind.lower())
        return handed

    @cached_property
    def _holders(self) -> Holders:
        return Holders(self.program.flow, self._is_sharded_part)

    def _is_sharded_part(self, value: Value) -> bool:
        return (isinstance(value, Wrapped) and not self.kept(value)) or value in self._handed_to_wrappers

    @cached_property
    def new_objects(self) -> NewObjects:
        """Which objects are plain when they are made."""
        return NewObjects(self.program, self.programs, self._holders, self._handed_to_wrappers, self.kept)

    @cached_property
    def _handed_at(self) -> dict[Value, list[int]]:
        """The variables that hold what wrappers have inside, by what it is."""
        found: dict[Value, list[int]] = {}
        for inner, _, variable in self._wrapped_modules():
            found.setdefault(inner, []).append(variable)
        return found

    def _wrapped_modules(self) -> Iterator[tuple[Value, Wrapped, int]]:
        """What each wrapper has inside, in which variable."""
        flow = self.program.flow
        for value in list(flow.values):
            variable = flow.fields.get((flow.ids[value], "module")) if isinstance(value, Wrapped) else None
            if variable is None or not isinstance(value, Wrapped) or self.kept(value):
                continue
            for inner in flow.values_of(variable):
                if isinstance(inner, Opaque) and is_tensor(inner.name):
                    continue  # of a function that shares a name or a table with those that make models
                if isinstance(inner, Instance) and not self.is_module(inner) and is_plain_object(flow, inner):
                    continue  # of a registry that makes other things too
                if isinstance(inner, (Instance, Opaque)) or (isinstance(inner, Unknown) and inner.variable >= 0):
                    yield inner, value, variable

    def made_apart(self, variable: int, values: Iterable[Value], path: str = "") -> frozenset[Value]:
        """Those of the values that a variable holds which other calls made than made what wrappers got.

        With ``path``, the file where the variable is read, those too that only wrappers of other programs get.
        """
        known = [v for v in values if v in self._handed_to_wrappers or v in self._parts_of_handed]
        return frozenset(v for v in known if self._is_of_other_programs(v, path) or not self._may_be_one(v, variable))

    def _may_be_one(self, value: Value, variable: int) -> bool:
        places = [*self._handed_at.get(value, ()), *self._held_at.get(value, ())]
        return not places or self._origins.may_be_one(value, variable, places)

    def _is_of_other_programs(self, value: Value, path: str) -> bool:
        """Whether a value is a wrapper that no process has which runs this file, or a model that only such wrappers get."""
        wrapped_in = self._files_of_wraps(value) if isinstance(value, Wrapped) else self._wrapped_in.get(value, ())
        return bool(path and wrapped_in) and not any(self.programs.may_meet(path, other) for other in wrapped_in)

    @cached_property
    def _wrapped_in(self) -> dict[Value, frozenset[str]]:
        """The files of the wrappers that models get into, by themselves or as parts of others."""
        found: dict[Value, frozenset[str]] = {}
        for inner, wrapped, _ in self._wrapped_modules():
            found[inner] = found.get(inner, frozenset()) | self._files_of_wraps(wrapped)
        for path in {path for paths in found.values() for path in paths}:
            for part in self.with_parts([inner for inner, paths in found.items() if path in paths]):
                found[part] = found.get(part, frozenset()) | {path}
        return found

    def comes_out_of_wrapper(self, file: File, node: ast.AST) -> bool:
        """Whether an expression may be what was read out of a wrapper, as ``model.module``."""
        variable = file.variable(node)
        handed = [v for v in file.values(node) if v in self._handed_to_wrappers]
        return any(self._origins.comes_through(v, variable, place) for v in handed for place in self._handed_at[v])

    @cached_property
    def _held_at(self) -> dict[Value, set[int]]:
        """The variables in which what wrappers get holds its parts, those among them that wrappers get alone as well."""
        flow = self.program.flow
        found: dict[Value, set[int]] = {}
        for holder in self.with_parts(self._handed_to_wrappers):
            for variable in self._held_in(holder):
                for value in flow.values_of(variable):
                    if value in self._handed_to_wrappers or value in self._parts_of_handed:
                        found.setdefault(value, set()).add(variable)
        return found

    def _files_of_wraps(self, wrapped: Wrapped) -> frozenset[str]:
        return frozenset({self.program.facts[self.program.flow.file_of_call(wrapped.site)].path} if wrapped.site >= 0 else ())

    def wraps_of(self, model: object) -> list[Wrapped] | None:
        """The wrappers that a model made in the repository is handed to; None where there may be others."""
        if not isinstance(model, Instance) or model.site < 0 or not self.new_objects.all_wrapped_known(model):
            return None
        flow = self.program.flow
        wrapped = [v for v in list(flow.values) if isinstance(v, Wrapped) and not self.kept(v)]
        return [v for v in wrapped if model in flow.values_of(flow.fields.get((flow.ids.get(v, -1), "module"), NOTHING))]

    def with_parts(self, models: Iterable[Value]) -> dict[Value, Value]:
        """Models and the modules in them, at any depth, each with the model that it was found in."""
        flow = self.program.flow
        pending = [(model, model) for model in models]
        found = dict(pending)
        while pending:
            holder, model = pending.pop()
            for variable in self._held_in(holder):
                for part in flow.values_of(variable):
                    if part not in found and (isinstance(part, Container) or self._may_be_part(part)):
                        found[part] = model
                        pending.append((part, model))
        return found

    def _held_in(self, holder: Value) -> Iterable[int]:
        """The variables of what an object holds."""
        return *self._holders.parts.get(self.program.flow.ids.get(holder, NOTHING), ()), *self._given_to_container(holder)

    def _given_to_container(self, holder: Value) -> Iterable[int]:
        """What the constructor of a ModuleList, or of a class derived from one, was called with: its entries."""
        flow = self.program.flow
        if not isinstance(holder, Instance) or holder.site < 0:
            return ()
        if MODULES_OF_MODULES.isdisjoint(flow.external_bases(holder.cls)):
            return ()
        call = flow.calls[holder.site]
        return [v for v in (*call.arguments, *(variable for _, variable in call.keywords)) if v != NOTHING]

    def held_values(self, models: Iterable[Value]) -> Iterable[Value]:
        """Models and all that their attributes, and those of the modules in them, may hold."""
        flow = self.program.flow
        pending = list(models)
        found = dict.fromkeys(pending)
        while pending:
            number = flow.ids.get(pending.pop())
            for variable in self._holders.parts.get(number, ()) if number is not None else ():
                for part in flow.values_of(variable):
                    if part not in found:
                        found[part] = None
                        if isinstance(part, Container) or self.is_module(part):
                            pending.append(part)
                        elif isinstance(part, Opaque) and part.name == "copy.deepcopy":
                            copied = flow.calls[part.site].arguments[:1]
                            pending += [v for argument in copied for v in flow.values_of(argument) if v not in found]
                            found |= dict.fromkeys(pending)
        return found

    def is_optimizer(self, value: Value) -> bool:
        """Whether a value is an optimizer, of torch or of a class of the repository."""
        if isinstance(value, Instance):
            return self.program.flow.optimizer_base(value.cls) is not None
        return isinstance(value, Optimizer)

    def is_no_module(self, value: Value) -> bool:
        """Whether a value is an optimizer, or an object of a class that makes no modules."""
        if isinstance(value, Instance):
            return not self.is_module(value)
        return isinstance(value, Optimizer)

    def _may_be_part(self, value: Value) -> bool:
        """Whether what a module holds may be a module: also what a library's function made, such as a backbone."""
        if value in self._handed_to_wrappers:
            return True
        if isinstance(value, Opaque) and not (value.name.startswith("torch.") or makes_no_modules(value.name)):
            return value.name != UNKNOWN and not is_scheduler(value.name) and not is_optimizer(value.name)
        return self.is_module(value) and not (isinstance(value, Opaque) and has_no_parameters(value.name))

    def is_module(self, value: Value) -> bool:
        """Whether a value is a module: of a class of the repository, or of torch."""
        if isinstance(value, Instance):
            return self.makes_modules(value.cls)
        return isinstance(value, Opaque) and value.name.startswith("torch.nn.")

    def makes_modules(self, cls: ClassValue) -> bool:
        """Whether a class of the repository makes modules."""
        return makes_modules(self.program.flow, cls)

    @cached_property
    def _parts_of_handed(self) -> dict[Value, Value]:
        """The modules in those that wrappers are called with: sharded too, but by calls of the whole model alone gathered."""
        return {p: m for p, m in self.with_parts(self._handed_to_wrappers).items() if p not in self._handed_to_wrappers}

    def of_part(self, file: File, node: ast.AST) -> Sharding:
        """Whether an expression is a module inside of a model that is sharded, read by code outside of that model."""
        apart = self.made_apart(file.variable(node), file.values(node), file.path)
        parts = [v for v in file.values(node) if v in self._parts_of_handed and v not in apart and not isinstance(v, Container)]
        if not parts or not all(map(self.is_module, parts)):
            return Sharding(Answer.UNKNOWN)
        if self._is_gathered_by_caller(file, node):
            return Sharding(Answer.UNKNOWN)
        return self.of_values([self._parts_of_handed[part] for part in parts])

    def _is_gathered_by_caller(self, file: File, part: ast.AST) -> bool:
        """Whether a part is read off the ``self`` of a module that is sharded with it: whoever called the method has gathered."""
        around, holder = file.enclosing_class(part), owner_of_part(file, part)
        if around is None or holder is None:
            return False
        if not any(isinstance(v, ClassValue) and self.makes_modules(v) for v in file.values(around)):
            return False
        holders = file.values(holder)
        return not holders or any(v in self._handed_to_wrappers or v in self._parts_of_handed for v in holders)

    def of_owners(self, owners: Iterable[Value], apart: Collection[Value] = (), path: str = "") -> Sharding:
        """Whether parameters (or what was computed from them) that were taken from these modules are sharded.

        With ``path``, the file where that is asked, by wrappers of its programs.
        """
        owners = list(owners)
        apart = {*apart, *(owner for owner in owners if self._is_of_other_programs(owner, path))}
        return self.of_values([o if o in apart else self._parts_of_handed.get(o, o) for o in owners], apart)

    def of_called(self, file: File, call: ast.Call) -> Sharding:
        """Whether what is called is a sharded model."""
        if call not in self._of_called:
            values = file.called_values(call)
            self._of_called[call] = self.of_values(values, self._apart_of(file, call, values))
        return self._of_called[call]

    def called_apart(self, file: File, call: ast.Call) -> frozenset[Value]:
        """As ``made_apart``, of what is called; of ``self.model(x)`` what the attribute holds."""
        return self._apart_of(file, call, file.called_values(call))

    def _apart_of(self, file: File, call: ast.Call, values: list[Value]) -> frozenset[Value]:
        known = [v for v in values if v in self._handed_to_wrappers or v in self._parts_of_handed]
        read = file.program.flow.read_and_called.get(file.call_site(call), ()) if known else ()
        variables = [file.variable(call.func)] if file.values(call.func) else read
        apart = [self.made_apart(variable, known, file.path) for variable in variables]
        return frozenset.intersection(*apart) if apart else frozenset()

    def of(self, file: File, node: ast.AST) -> Sharding:
        """Whether an expression is a sharded model."""
        values = file.values(node)
        values = [v for v in values if not (isinstance(v, Wrapped) and self._is_of_other_programs(v, file.path))] or values
        found = unless_unseen(file, node, self.of_values(values, self.made_apart(file.variable(node), values, file.path)))
        if (said := self._said.of(file, node)) is Answer.YES or (said is Answer.NO and found.answer is not Answer.YES):
            kinds = {v.kind.lower() for v in list(self.program.flow.values) if isinstance(v, Wrapped) and not self.kept(v)}
            return replace(found, answer=said, wrappers=found.wrappers or frozenset(kinds if said is Answer.YES else ()))
        if found.answer is Answer.UNKNOWN and says_no_model(file, node):
            return Sharding(Answer.NO)
        if found.answer is Answer.NO and self._before is not None:
            return self._before.of(self._before.program.file(file.path), node)  # another run may show something else
        return unless_loaded(found, file, node)

    @cached_property
    def _before(self) -> ShardingQueries | None:
        """The same questions without what a run has shown."""
        before = self.program.baseline
        return before and ShardingQueries(before, Programs(before, self.programs.scripts, self.programs.is_package), self.kept)

    def of_values(self, values: Iterable[Value], apart: Collection[Value] = ()) -> Sharding:
        """Whether what may be any of these values is a sharded model; those apart are not the ones that wrappers got."""
        values = [v for v in values if not (isinstance(v, Constant) and v.value is None)]
        # What `with` binds is what a generator yields.
        values = [v for v in values if not (isinstance(v, Container) and v.kind == "generator")]
        if not values:
            return Sharding(Answer.UNKNOWN)
        wrapped = [v for v in values if isinstance(v, (Wrapped, Annotated)) and not self.kept(v)]
        handed = [v for v in values if v in self._handed_to_wrappers and v not in apart]
        kinds = {v.kind.lower() for v in wrapped}.union(*(self._handed_to_wrappers[v] for v in handed))
        others = [v for v in values if v not in wrapped and v not in handed]
        if not wrapped and not handed:
            surely_not = all(self._is_no_model(v, apart) for v in others)
            return Sharding(Answer.NO if surely_not else Answer.UNKNOWN)
        certain = all(isinstance(v, Wrapped) and v in wrapped for v in values)
        seen = [v for v in wrapped if isinstance(v, Wrapped)] or wrapped or handed
        return Sharding(Answer.YES if certain else Answer.UNKNOWN, frozenset(kinds), seen[0], in_place=not wrapped,
                        wrapped_in=frozenset(v.kind.lower() for v in wrapped))  # fmt: skip

    def of_optimizer(self, file: File, node: ast.AST) -> Sharding:
        """Whether an expression is an optimizer over sharded parameters."""
        found = unless_unseen(file, node, self.of_optimizers(file.values(node)))
        if found.answer is Answer.UNKNOWN and says_no_model(file, node):
            return Sharding(Answer.NO)
        if found.answer is Answer.NO and self._before is not None:
            return self._before.of_optimizer(self._before.program.file(file.path), node)
        return unless_loaded(found, file, node)

    def of_optimizers(self, held: Iterable[Value]) -> Sharding:
        """Whether what may be any of these values is an optimizer over sharded parameters."""
        values = [v for v in held if not (isinstance(v, Constant) and v.value is None)]
        optimizers = [v for v in values if isinstance(v, Optimizer)]
        optimizers += [inner for v in values if isinstance(v, Opaque) for inner in optimizers_around(self.program, v)]
        if not values:
            return Sharding(Answer.UNKNOWN)
        if not optimizers:
            return Sharding(Answer.NO if all(self._is_no_optimizer(v) for v in values) else Answer.UNKNOWN)
        answers = [self.of_parameters(v) for v in optimizers]
        found = next((a for a in answers if a.wrappers), answers[0])
        if len(optimizers) == len(values) and all(a.answer is answers[0].answer for a in answers):
            return Sharding(answers[0].answer, found.wrappers, found.value)
        return Sharding(Answer.UNKNOWN, found.wrappers, found.value)

    def of_parameters(self, optimizer: Optimizer) -> Sharding:
        """Whether the parameters that an optimizer is built over are those of a sharded model."""
        flow = self.program.flow
        given = flow.fields.get((flow.ids.get(optimizer, NOTHING), "params"), NOTHING)
        owners = list(self.owners(flow.values_of(given)))
        return self.of_owners(owners) if owners else Sharding(Answer.UNKNOWN)

    def owners(self, values: Iterable[Value]) -> Iterable[Value]:
        """The models that parameters (in lists, groups and dictionaries at any depth) are taken from."""
        return self._owners(values, set())

    def _owners(self, values: Iterable[Value], seen: set[Value]) -> Iterable[Value]:
        flow = self.program.flow
        for value in values:
            if value in seen:
                continue
            seen.add(value)
            if isinstance(value, Derived) and value.kind == "norm":
                continue  # a number that clipping gave
            if isinstance(value, Derived):
                owner = value.owner
                while isinstance(owner, Derived):
                    owner = owner.owner
                yield owner  # pyright: ignore[reportReturnType]
            elif isinstance(value, Container):
                for variable in self._elements.get(flow.ids.get(value, -1), ()):
                    yield from self._owners(flow.values_of(variable), seen)

    @cached_property
    def _elements(self) -> dict[int, list[int]]:
        """The variables of a container's elements, by its number."""
        found: dict[int, list[int]] = {}
        for (owner, name), variable in self.program.flow.fields.items():
            if name.startswith(("[", "**")):
                found.setdefault(owner, []).append(variable)
        return found

    def elements(self, container: Container) -> list[Value]:
        """What a container may hold."""
        flow = self.program.flow
        variables = self._elements.get(flow.ids.get(container, -1), ())
        return [value for variable in variables for value in flow.values_of(variable)]

    def holds_ddp(self, value: Value) -> bool:
        """Whether an object that no wrapper is given keeps a model in DDP in an attribute."""
        if not isinstance(value, Instance) or value in self._handed_to_wrappers or value in self._parts_of_handed:
            return False
        held = (v for variable in self._holders.parts.get(self.program.flow.ids.get(value, -1), ())
                for v in self.program.flow.values_of(variable))  # fmt: skip
        return any(isinstance(v, Wrapped) and v.kind == "DDP" and not self.kept(v) for v in held)

    def provenance(self, file: File, node: ast.AST, sharding: Sharding) -> tuple[Step, ...]:
        """The steps by which a sharded model comes to an expression; empty where none is known to."""
        return self.program.provenance(file, node, sharding.value) if sharding.value is not None else ()

    def _is_no_model(self, value: Value, apart: Collection[Value] = (), depth: int = 0) -> bool:
        """Whether a value is surely no module that may be sharded."""
        if isinstance(value, (Wrapped, Annotated)):
            return self.kept(value)
        if isinstance(value, Container) and value.kind == "GeneratorExp":
            return False  # `next()` of it gives an element
        if isinstance(value, Derived) and value.kind == "modules":
            return False  # a unit, or a part of one
        if isinstance(value, (*_NO_OBJECTS, Optimizer, Derived)):
            return True
        if value in self._parts_of_handed and value not in apart and not (isinstance(value, Opaque) and is_tensor(value.name)):
            return False
        if isinstance(value, Opaque):
            if is_scheduler(value.name) or is_optimizer(value.name) or makes_no_modules(value.name):
                return True
            return self._is_made_outside(value, depth)
        if isinstance(value, Instance):
            # Built here, in no wrapper that is seen, without sharded parts: only code out of sight could have sharded it.
            is_known = value.site >= 0 and not hands_on(self.program.flow, value) and not self._holders.holds_sharded(value)
            return (is_known and self.new_objects.all_wrapped_known(value)) or is_plain_object(self.program.flow, value)
        return False

    def _is_made_outside(self, value: Opaque, depth: int) -> bool:
        """Whether a library made an object of nothing that may be a model here, and no wrapper gets it."""
        if value.name == UNKNOWN:
            return self.new_objects.is_plain_from_factory(value)
        if is_tensor(value.name):
            return True
        if value.name.startswith(_MAKERS_OF_ANYTHING) or depth > 2:
            return False
        if not self.new_objects.all_wrapped_known(value):
            return False
        call = self.program.flow.calls[value.site]
        given = [*call.arguments, *(argument for _, argument in call.keywords)]
        held = [v for argument in given if argument != NOTHING for v in self.program.flow.values_of(argument)]
        return all(
            isinstance(v, (Constant, External, ModuleValue, Optimizer)) or (isinstance(v, Unknown) and v.variable < 0)
            or (v not in self._handed_to_wrappers and isinstance(v, Opaque) and self._is_no_model(v, depth=depth + 1))
            for v in held
        )  # fmt: skip

    def _is_no_optimizer(self, value: Value) -> bool:
        if isinstance(value, (*_NO_OBJECTS, Derived)):
            return True
        if isinstance(value, Instance):
            return is_plain_object(self.program.flow, value) or self.makes_modules(value.cls)
        return isinstance(value, Opaque) and (
            is_scheduler(value.name) or makes_no_modules(value.name) or self._is_made_outside(value, 0)
        )


_MAKERS_OF_ANYTHING = ("hydra.", "importlib.", "builtins.", "pickle.", "torch.load", "accelerate.", "torch.nn.", "torch.compile")
"""Functions whose results may be objects of the repository, or hold some."""
