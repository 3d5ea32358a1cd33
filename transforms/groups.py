"""Migration groups: all sites of one wrapped model, its optimizers and its checkpoints.

Half a migration is worse than none (a constructor rewritten and the optimizer's order not: it trains nothing and
raises nothing), so a group is applied whole or not at all.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable
from dataclasses import dataclass, field

from .analysis.facts import NOTHING
from .analysis.symbols import WRAPPERS, is_old
from .analysis.values import (
    Annotated,
    ClassValue,
    Container,
    Derived,
    External,
    Instance,
    Kept,
    Opaque,
    Optimizer,
    Partial,
    Unknown,
    Value,
    Wrapped,
)
from .holders import holders_of
from .introspection.subclasses import Subclasses
from .program import Program, owner_of
from .sharding.wrap_blocks import settings_of
from .view import FileView

_PLAIN_BASES = (
    "builtins.", "abc.", "typing.", "typing_extensions.", "enum.", "collections.", "torch.optim.", "torch.utils.data.",
)  # fmt: skip
"""Where classes come from that are no models."""
_STRATEGY = "torch.distributed.fsdp.ShardingStrategy."


@dataclass(eq=False)
class Wrap:
    """One call of a wrapper constructor."""

    value: Wrapped
    view: FileView
    node: ast.Call
    subclass: ClassValue | None = None
    """The class of the repository that is called in the wrapper's place."""

    @property
    def place(self) -> str:
        return f"{self.view.path}:{self.node.lineno}"

    @property
    def names_wrapper(self) -> bool:
        """Whether it is the wrapper itself that is called, and by its name: not a registry's or a partial's."""
        return self.view.external(self.node.func) in WRAPPERS


@dataclass(eq=False)
class Group:
    """What has to be migrated together."""

    name: str
    wraps: list[Wrap] = field(default_factory=list)
    raw: set[Value] = field(default_factory=set)
    """The unwrapped models: with FSDP2 they are the same objects as the wrapped ones. Also those that stay under DDP."""
    optimizers: list[Optimizer] = field(default_factory=list)
    kind_of_unseen: str = ""
    """The kind of a subclass that nothing in these files builds, so that there are no wraps."""

    @property
    def kinds(self) -> set[str]:
        """FSDP1, DDP or both."""
        return {wrap.value.kind for wrap in self.wraps} or {self.kind_of_unseen}

    @property
    def stays_ddp(self) -> bool:
        """Whether subclasses of DDP wrap everything here, and no plain call of DDP: such wraps stay what they are."""
        stays = not self.wraps or any(wrap.subclass is not None for wrap in self.wraps)
        return self.kinds == {"DDP"} and stays and not any(wrap.names_wrapper for wrap in self.wraps)


class Groups:
    """All groups of a repository, and which one a value belongs to."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.subclasses = Subclasses(program)
        self._parent: dict[Value, Value] = {}
        wraps = [value for value in program.flow.values if isinstance(value, Wrapped)]
        wraps.sort(key=lambda value: value.site)
        for wrap in wraps:
            self._parent.setdefault(wrap, wrap)
            built = self.subclasses.built.get(wrap.site)
            if built is not None:
                self._unite(wrap, built)
            for inner in self.models(program.attribute(wrap, "module")):
                self._unite(wrap, inner)
        for kept in (value for value in program.flow.values if isinstance(value, Kept)):
            for inner in self.models(program.attribute(kept, "module")):
                self._unite(inner, kept)
        self._wraps = wraps
        self._members: dict[Value, Group] = {}
        self._settings: set[Value] = set()
        self._fields: dict[int, list[int]] | None = None
        """Attributes and elements of each value, by number."""
        self._by_choice: Wrapped | None = None
        self._unseen: dict[ClassValue, Group] = {}
        for wrap in wraps:
            if wrap.kind == "FSDP1":
                self._unite_settings(wrap)
        self._unite_statements()
        self._unite_parts()
        self._build()

    def models(self, values: Iterable[Value]) -> list[Value]:
        """The models among values: what a wrapper may be given."""
        found: list[Value] = []
        for value in self.program.elements(list(values)):
            owner = owner_of(value)
            if isinstance(owner, (Wrapped, Instance, Opaque, Unknown)) and not isinstance(value, Container):
                if not self._is_no_module(owner):
                    found.append(owner)
        return found

    def _is_no_module(self, value: Value) -> bool:
        """Whether a value is an object that the repository makes of a class that surely does not derive from nn.Module."""
        if not isinstance(value, Instance) or value.site < 0:
            return False
        flow = self.program.flow
        for cls in flow.ancestors(value.cls):
            for base in self.program.files[cls.file].classes[cls.index].bases:
                values = flow.values_of(base + flow.variable_offsets[cls.file]) if base != NOTHING else []
                if not values or not all(isinstance(v, ClassValue) or _is_plain_base(v) for v in values):
                    return False
        return True

    def _unite_statements(self) -> None:
        """Wraps of one statement that build their models there are one group: else one would be built before the other."""
        first: dict[ast.stmt, Wrapped] = {}
        for wrap in self._wraps:
            view, node = self.program.call_node(wrap.site)
            if any(isinstance(inner, ast.Call) for argument in node.args[:1] for inner in ast.walk(argument)):
                self._unite(first.setdefault(view.statement(node), wrap), wrap)

    def _unite_parts(self) -> None:
        """A model and the wraps among its parts are one group, and so are the wraps of one ``enable_wrap`` block."""
        blocks: dict[ast.Call, Wrapped] = {}
        holders = holders_of(self.program, self._wraps)
        self.has_wrapped_parts = any(holders.values())
        """Whether some model is not wrapped itself but has parts that are: a test of it alone does not tell."""
        for wrap, models in holders.items():
            for model in models:
                self._unite(wrap, model)
            settings = settings_of(*self.program.call_node(wrap.site))
            if settings is not None:
                self._unite(blocks.setdefault(settings, wrap), wrap)

    def _unite_settings(self, wrap: Wrapped) -> None:
        """Policies and precisions belong to the wraps that take them: they are rewritten together or not at all."""
        view, node = self.program.call_node(wrap.site)
        settings = settings_of(view, node)
        keywords = [*node.keywords, *(settings.keywords if settings is not None else ())]
        pending = [v for k in keywords for v in self.program.elements(view.values(k.value))]
        pending += [v for a in node.args[1:] for v in self.program.elements(view.values(a))]
        while pending:
            value = pending.pop()
            old = isinstance(value, Opaque) and is_old(value.name)
            if value in self._settings and self._root(value) == self._root(wrap):
                continue
            if isinstance(value, External) and value.name.startswith(_STRATEGY) and not _is_named(node, value):
                if self._by_choice is not None:
                    self._unite(self._by_choice, wrap)
                self._by_choice = self._by_choice or wrap
            if old or isinstance(value, Partial):
                self._settings.add(value)
                self._unite(wrap, value)
            if isinstance(value, Partial):
                inner = self.program.flow.calls[value.site]
                for variable in (*inner.arguments, *(v for _, v in inner.keywords)):
                    pending.extend(self.program.elements(self.program.flow.values_of(variable)))

    def of_strategies(self) -> Group | None:
        """The group of the wraps whose strategy is chosen elsewhere, by a configuration or an argument."""
        return self._members.get(self._by_choice) if self._by_choice is not None else None

    def _root(self, value: Value) -> Value:
        while (parent := self._parent.get(value, value)) != value:
            value = parent
        return value

    def _unite(self, first: Value, second: Value) -> None:
        self._parent.setdefault(first, first)
        self._parent.setdefault(second, second)
        one, other = self._root(first), self._root(second)
        if one != other:
            self._parent[other] = one

    def _build(self) -> None:
        self.all: list[Group] = []
        self._layers_found: dict[Value, Group] | None = None
        self._members.clear()
        by_root: dict[Value, Group] = {}
        for value in self._wraps:
            root = self._root(value)
            view, node = self.program.call_node(value.site)
            built = self.subclasses.built.get(value.site)
            wrap = Wrap(value, view, node, built.cls if built is not None else None)
            if root not in by_root:
                by_root[root] = Group(f"{view.path}:{node.lineno}")
                self.all.append(by_root[root])
            by_root[root].wraps.append(wrap)
        for value in self._parent:
            group = by_root.get(self._root(value))
            if group is not None:
                self._members[value] = group
                if not self._is_wrapper(value) and value not in self._settings:
                    group.raw.add(value)
        for value in self.program.flow.values:
            if isinstance(value, Optimizer):
                group = self.of_tensors(self.program.attribute(value, "params")) or self._written_for(value)
                if group is not None:
                    group.optimizers.append(value)
                    self._members[value] = group

    def _written_for(self, optimizer: Optimizer) -> Group | None:
        """The group whose model an optimizer's call names, where only a part of it is asked for its parameters.

        Of a model that is not in the repository, ``model.head`` is nothing that the flow of values knows.
        """
        view, call = self.program.call_node(optimizer.site)
        for node in ast.walk(call):
            if isinstance(node, ast.Attribute) and node.attr in ("parameters", "named_parameters"):
                part = node.value
                while isinstance(part, (ast.Attribute, ast.Subscript)) and not view.values(part):
                    part = part.value
                group = self.of(view.values(part))
                if group is not None:
                    return group
        return None

    def _is_wrapper(self, value: Value) -> bool:
        return isinstance(value, Wrapped) or (isinstance(value, Instance) and value.cls in self.subclasses.kinds)

    def of_subclass(self, cls: ClassValue) -> Group:
        """The group of what a subclass of a wrapper is built around; one of its own where nothing is seen to build it."""
        lineage = self.program.flow.ancestors
        wraps = ((group, wrap.subclass) for group in self.all for wrap in group.wraps)
        found = next((group for group, built in wraps if built is not None and cls in lineage(built)), None)
        if found is None and cls not in self._unseen:
            facts = self.program.files[cls.file]
            name = f"{facts.path}:{facts.classes[cls.index].line}"
            self._unseen[cls] = Group(name, kind_of_unseen=self.subclasses.kinds[cls])
        return found or self._unseen[cls]

    def merge(self, values: Iterable[Value]) -> bool:
        """Makes one group of all that these values belong to: one site serves them all. Whether they were several."""
        members = [owner for owner in map(owner_of, values) if owner in self._members and owner in self._parent]
        several = len({self._root(member) for member in members}) > 1
        for other in members[1:]:
            self._unite(members[0], other)
        return several

    def rebuild(self) -> None:
        """Applies the merges."""
        self._build()

    def of(self, values: Iterable[Value]) -> Group | None:
        """The group that any of the values (or of what containers among them hold) belongs to."""
        for value in self.program.elements(list(values)):
            group = self._members.get(owner_of(value))
            if group is not None:
                return group
        return None

    def of_tensors(self, values: Iterable[Value]) -> Group | None:
        """The group that any of these parameters belong to, also those read off a layer of its models by name."""
        values = self.program.elements(list(values))
        group = self.of(values)
        if group is None:
            layers = self._layers()
            group = next((layers[owner] for owner in map(owner_of, values) if owner in layers), None)
        return group

    def _layers(self) -> dict[Value, Group]:
        """Modules that models of a group hold as attributes, at any depth: the repository's own and torch's layers."""
        if self._layers_found is None:
            self._layers_found = {}
            for group in self.all:
                for part in self.parts_of(group.raw, with_strangers=True):
                    self._layers_found.setdefault(part, group)
        return self._layers_found

    def parts_of(self, models: Iterable[Value], with_strangers: bool = False) -> set[Value]:
        """The modules that models hold as attributes and in containers, at any depth.

        ``with_strangers`` adds what other libraries made, which may be models.
        """
        if self._fields is None:
            self._fields = {}
            for (number, _), variable in self.program.flow.fields.items():
                self._fields.setdefault(number, []).append(variable)
        parts: set[Value] = set()
        seen: set[Value] = set()
        pending: list[Value] = [value for value in models if isinstance(value, (Instance, Opaque))]
        while pending:
            value = pending.pop()
            if value in seen:
                continue
            seen.add(value)
            for variable in self._fields.get(self.program.flow.ids.get(value, -1), ()):
                for held in self.program.flow.values_of(variable):
                    if self._is_module(held) or isinstance(held, Wrapped) or (with_strangers and isinstance(held, Opaque)):
                        parts.add(held)
                    if self._is_module(held) or isinstance(held, (Container, Wrapped)):
                        pending.append(held)
        return parts

    def _is_module(self, value: Value) -> bool:
        """Whether a value is surely a torch module, of torch itself or of a class of the repository."""
        if isinstance(value, Opaque):
            return value.name.startswith("torch.nn.")
        bases = self.program.flow.external_bases(value.cls) if isinstance(value, Instance) else []
        return any(name.startswith("torch.nn.") or name.endswith(("Module", "Model")) for name in bases)

    def wrap_of(self, value: Value) -> Wrap | None:
        """The constructor call behind a wrapped value."""
        group = self._members.get(value)
        return next((wrap for wrap in group.wraps if wrap.value == value), None) if group else None


def _is_plain_base(value: Value) -> bool:
    return isinstance(value, External) and value.name.startswith(_PLAIN_BASES)


def _is_named(call: ast.Call, strategy: External) -> bool:
    """Whether a constructor call names its strategy itself, ``sharding_strategy=ShardingStrategy.FULL_SHARD``."""
    given = [*call.args, *(keyword.value for keyword in call.keywords)]
    name = strategy.name.rpartition(".")[2]
    return any(isinstance(node, ast.Attribute) and node.attr == name for node in given)


def is_wrapped(value: Value) -> bool:
    """Whether a value is surely the result of a wrapper."""
    return isinstance(value, (Wrapped, Annotated))


def derived_kinds(values: Iterable[Value]) -> set[str]:
    """What the values are in relation to a model: parameters, state_dict, no_sync …"""
    return {value.kind for value in values if isinstance(value, Derived)}
