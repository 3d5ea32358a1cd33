"""What an expression has to do with wrapped models: is it one, is it made from one, which wrapper was it."""

from __future__ import annotations

import ast
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import cached_property

from ..facts.facts import NOTHING
from ..findings import Step
from ..flow.library import (
    COLLECT,
    MODULES_OF_MODULES,
    PASS_THROUGH,
    has_no_parameters,
    is_optimizer,
    is_scheduler,
    is_tensor,
    is_tensor_math,
    makes_no_modules,
)
from ..flow.values import (
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
from .object_origins import ObjectOrigins
from .optimizer_objects import optimizers_around
from .partly_seen import unless_loaded, unless_unseen
from .parts_of_self import owner_of_part
from .plain_objects import hands_on, is_plain_object
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

    @cached_property
    def _handed_to_wrappers(self) -> dict[Value, set[str]]:
        """The modules that wrappers are called with, and which wrappers."""
        handed: dict[Value, set[str]] = {}
        for inner, wrapped, _ in self._wrapped_modules():
            handed.setdefault(inner, set()).add(wrapped.kind.lower())
        return handed

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

    def made_apart(self, variable: int, values: Iterable[Value]) -> frozenset[Value]:
        """Those of the values that a variable holds which other calls made than made what wrappers got."""
        handed = [v for v in values if v in self._handed_to_wrappers]
        places = {v: [*self._handed_at[v], *self._held_at.get(v, ())] for v in handed}
        return frozenset(v for v in handed if not self._origins.may_be_one(v, variable, places[v]))

    def comes_out_of_wrapper(self, file: File, node: ast.AST) -> bool:
        """Whether an expression may be what was read out of a wrapper, as ``model.module``."""
        variable = file.variable(node)
        handed = [v for v in file.values(node) if v in self._handed_to_wrappers]
        return any(self._origins.comes_through(v, variable, place) for v in handed for place in self._handed_at[v])

    @cached_property
    def _held_at(self) -> dict[Value, set[int]]:
        """The variables of attributes in which what wrappers get holds modules that they get alone as well."""
        flow = self.program.flow
        found: dict[Value, set[int]] = {}
        for holder in self.with_parts(self._handed_to_wrappers):
            for variable in self._parts.get(flow.ids.get(holder, -1), ()):
                for value in flow.values_of(variable):
                    if value in self._handed_to_wrappers:
                        found.setdefault(value, set()).add(variable)
        return found

    def wraps_of(self, model: object) -> list[Wrapped] | None:
        """The wrappers that a model made in the repository is handed to; None where there may be others."""
        if not isinstance(model, Instance) or model.site < 0 or not self._all_wrapped_known(model):
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
            number = flow.ids.get(holder)
            variables = [*(self._parts.get(number, ()) if number is not None else ()), *self._given_to_container(holder)]
            for variable in variables:
                for part in flow.values_of(variable):
                    if part not in found and (isinstance(part, Container) or self._may_be_part(part)):
                        found[part] = model
                        pending.append((part, model))
        return found

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
            for variable in self._parts.get(number, ()) if number is not None else ():
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
            return value.name != "?" and not is_scheduler(value.name) and not is_optimizer(value.name)
        return self.is_module(value) and not (isinstance(value, Opaque) and has_no_parameters(value.name))

    def is_module(self, value: Value) -> bool:
        """Whether a value is a module: of a class of the repository, or of torch."""
        if isinstance(value, Instance):
            return _is_module(self.program.flow.external_bases(value.cls))
        return isinstance(value, Opaque) and value.name.startswith("torch.nn.")

    def makes_modules(self, cls: ClassValue) -> bool:
        """Whether a class of the repository makes modules."""
        return _is_module(self.program.flow.external_bases(cls))

    @cached_property
    def _parts_of_handed(self) -> dict[Value, Value]:
        """The modules in those that wrappers are called with: sharded too, but by calls of the whole model alone gathered."""
        return {p: m for p, m in self.with_parts(self._handed_to_wrappers).items() if p not in self._handed_to_wrappers}

    def of_part(self, file: File, node: ast.AST) -> Sharding:
        """Whether an expression is a module inside of a model that is sharded, read by code outside of that model."""
        parts = [v for v in file.values(node) if v in self._parts_of_handed and not isinstance(v, Container)]
        if not parts or not all(isinstance(v, Instance) and not self.is_no_module(v) for v in parts):
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

    def of_owners(self, owners: Iterable[Value], apart: Collection[Value] = ()) -> Sharding:
        """Whether parameters (or what was computed from them) that were taken from these modules are sharded."""
        return self.of_values([self._parts_of_handed.get(owner, owner) for owner in owners], apart)

    def of_called(self, file: File, call: ast.Call) -> Sharding:
        """Whether what is called is a sharded model."""
        return self.of_values(file.called_values(call), self.called_apart(file, call))

    def called_apart(self, file: File, call: ast.Call) -> frozenset[Value]:
        """As ``made_apart``, of what is called; of ``self.model(x)`` what the attribute holds."""
        read = file.program.flow.read_and_called.get(file.call_site(call), ())
        variables = [file.variable(call.func)] if file.values(call.func) else read
        apart = [self.made_apart(variable, file.called_values(call)) for variable in variables]
        return frozenset.intersection(*apart) if apart else frozenset()

    def of(self, file: File, node: ast.AST) -> Sharding:
        """Whether an expression is a sharded model."""
        values = file.values(node)
        found = unless_unseen(file, node, self.of_values(values, self.made_apart(file.variable(node), values)))
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
        return before and ShardingQueries(before, Programs(before, self.programs.scripts), self.kept)

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
            surely_not = all(self._is_no_model(v) for v in others)
            return Sharding(Answer.NO if surely_not else Answer.UNKNOWN)
        certain = all(isinstance(v, Wrapped) and v in wrapped for v in values)
        return Sharding(Answer.YES if certain else Answer.UNKNOWN, frozenset(kinds), (wrapped or handed)[0], in_place=not wrapped,
                        wrapped_in=frozenset(v.kind.lower() for v in wrapped))  # fmt: skip

    def of_optimizer(self, file: File, node: ast.AST) -> Sharding:
        """Whether an expression is an optimizer over sharded parameters."""
        found = unless_unseen(file, node, self._of_optimizers(file.values(node)))
        if found.answer is Answer.UNKNOWN and says_no_model(file, node):
            return Sharding(Answer.NO)
        if found.answer is Answer.NO and self._before is not None:
            return self._before.of_optimizer(self._before.program.file(file.path), node)
        return unless_loaded(found, file, node)

    def _of_optimizers(self, held: Iterable[Value]) -> Sharding:
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
        call = self.program.flow.calls[optimizer.site]
        handed = call.arguments[0] if call.arguments else dict(call.keywords).get("params")
        if handed is None:
            return Sharding(Answer.UNKNOWN)
        owners = list(self.owners(self.program.flow.values_of(handed)))
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
        held = (v for variable in self._parts.get(self.program.flow.ids.get(value, -1), ())
                for v in self.program.flow.values_of(variable))  # fmt: skip
        return any(isinstance(v, Wrapped) and v.kind == "DDP" and not self.kept(v) for v in held)

    def provenance(self, file: File, node: ast.AST, sharding: Sharding) -> tuple[Step, ...]:
        """The steps by which a sharded model comes to an expression; empty where none is known to."""
        return self.program.provenance(file, node, sharding.value) if sharding.value is not None else ()

    def _is_no_model(self, value: Value, depth: int = 0) -> bool:
        """Whether a value is surely no module that may be sharded."""
        if isinstance(value, (Wrapped, Annotated)):
            return self.kept(value)
        if isinstance(value, Container) and value.kind == "GeneratorExp":
            return False  # `next()` of it gives an element
        if isinstance(value, Derived) and value.kind == "modules":
            return False  # a unit, or a part of one
        if isinstance(value, (*_NO_OBJECTS, Optimizer, Derived)):
            return True
        if value in self._parts_of_handed:
            return False
        if isinstance(value, Opaque):
            if is_scheduler(value.name) or is_optimizer(value.name) or makes_no_modules(value.name):
                return True
            return self._is_made_outside(value, depth)
        if isinstance(value, Instance):
            # Built here, in no wrapper that is seen, without sharded parts: only code out of sight could have sharded it.
            is_known = value.site >= 0 and not hands_on(self.program.flow, value) and not self._holds_sharded(value)
            return (is_known and self._all_wrapped_known(value)) or is_plain_object(self.program.flow, value)
        return False

    def _is_made_outside(self, value: Opaque, depth: int) -> bool:
        """Whether a library made an object of nothing that may be a model here, and no wrapper gets it."""
        if value.name == "?" or value.name.startswith(_MAKERS_OF_ANYTHING) or depth > 2 or not self._all_wrapped_known(value):
            return False
        call = self.program.flow.calls[value.site]
        given = [*call.arguments, *(argument for _, argument in call.keywords)]
        held = [v for argument in given if argument != NOTHING for v in self.program.flow.values_of(argument)]
        return all(
            isinstance(v, (Constant, External, ModuleValue, Optimizer)) or (isinstance(v, Unknown) and v.variable < 0)
            or (v not in self._handed_to_wrappers and isinstance(v, Opaque) and self._is_no_model(v, depth + 1))
            for v in held
        )  # fmt: skip

    def is_new(self, value: Instance | Opaque, path: str = "") -> bool:
        """Whether an object is a module that is plain when it is made: nothing that may be sharded comes into it.

        With ``path``, in the programs that a file is part of.
        """
        if isinstance(value, Instance):
            is_module = self.makes_modules(value.cls)
            if not is_module or hands_on(self.program.flow, value) or self._holds_sharded(value):
                return False
            return self._all_wrapped_known(value, path) or (all(self._given(value)) and self._gets_nothing_sharded(value))
        if value.name in _PASSING_ON or value.name == "?" or is_optimizer(value.name):
            return False
        if is_tensor_math(value.name) and not all(self._given(value)):
            return False  # computed from nobody knows what
        return self._gets_nothing_sharded(value)

    def _given(self, value: Instance | Opaque) -> list[list[Value]]:
        """What the call that made an object is given: for each argument what it may be."""
        call = self.program.flow.calls[value.site]
        given = [*call.arguments, *(argument for _, argument in call.keywords)]
        return [self.program.flow.values_of(argument) for argument in given if argument != NOTHING]

    def _gets_nothing_sharded(self, value: Instance | Opaque) -> bool:
        return all(
            isinstance(v, (Constant, External, ModuleValue)) or (isinstance(v, Unknown) and v.variable < 0)
            or (isinstance(v, (Container, Instance)) and v not in self._handed_to_wrappers and not self._holds_sharded(v))
            or (isinstance(v, Opaque) and v.name == "copy.deepcopy")  # copies of models are plain
            for held in self._given(value) for v in held
        )  # fmt: skip

    def _all_wrapped_known(self, value: Instance | Opaque, path: str = "") -> bool:
        """Whether every wrapper in the programs that make an object is seen to get models that are seen to be made."""
        made_in = self.program.facts[self.program.flow.file_of_call(value.site)].path
        unknown = self._files_of_unknown_wraps.intersection(self.programs.sharing_entries(made_in))
        return not unknown or (bool(path) and unknown.isdisjoint(self.programs.sharing_entries(path)))

    @cached_property
    def _files_of_unknown_wraps(self) -> frozenset[str]:
        flow = self.program.flow
        found: set[str] = set()
        for value in list(flow.values):
            if isinstance(value, Wrapped) and not self.kept(value):
                variable = flow.fields.get((flow.ids.get(value, -1), "module"))
                inner = flow.values_of(variable) if variable is not None else []
                if not inner or any(isinstance(v, Unknown) or (isinstance(v, Opaque) and v.name == "?") for v in inner):
                    found.add(self.program.facts[flow.file_of_call(value.site)].path)
        return frozenset(found)

    @cached_property
    def _parts(self) -> dict[int, list[int]]:
        """The variables of each object's attributes, or elements."""
        parts: dict[int, list[int]] = {}
        for (owner, name), variable in list(self.program.flow.fields.items()):
            if name != "module":
                parts.setdefault(owner, []).append(variable)
        return parts

    def _holds_sharded(self, value: Value) -> bool:
        """Whether a model that is sharded is known to be part of an object."""
        return self.program.flow.ids.get(value) in self._holders_of_sharded

    @cached_property
    def _holders_of_sharded(self) -> set[int]:
        """The objects that hold a sharded model at any depth, by number: found once for all, from the models outwards."""
        flow = self.program.flow
        numbers = [flow.ids[value] for value in flow.values]  # where values were exchanged, several places stand for one
        owners: dict[int, list[int]] = {}
        for owner, variables in self._parts.items():
            for part in {numbers[part] for variable in variables for part in flow.points_to[variable] or ()}:
                owners.setdefault(part, []).append(owner)
        holders: set[int] = set()
        pending = [number for value, number in flow.ids.items() if self._is_sharded_part(value)]
        while pending:
            for owner in owners.get(pending.pop(), ()):
                if owner not in holders:
                    holders.add(owner)
                    if isinstance(flow.values[owner], (Instance, Opaque, Container)):
                        pending.append(owner)
        return holders

    def _is_sharded_part(self, value: Value) -> bool:
        return (isinstance(value, Wrapped) and not self.kept(value)) or value in self._handed_to_wrappers

    def _is_no_optimizer(self, value: Value) -> bool:
        if isinstance(value, (*_NO_OBJECTS, Derived)):
            return True
        if isinstance(value, Instance):
            return is_plain_object(self.program.flow, value) or _is_module(self.program.flow.external_bases(value.cls))
        return isinstance(value, Opaque) and (
            is_scheduler(value.name) or makes_no_modules(value.name) or self._is_made_outside(value, 0)
        )


_PASSING_ON = COLLECT | PASS_THROUGH | {"builtins.eval"}
_MAKERS_OF_ANYTHING = ("hydra.", "importlib.", "builtins.", "pickle.", "torch.load", "accelerate.", "torch.nn.", "torch.compile")
"""Functions whose results may be objects of the repository, or hold some."""


def _is_module(bases: Sequence[str]) -> bool:
    return any(base.startswith("torch.nn.") for base in bases) and not any(is_optimizer(base) for base in bases)
