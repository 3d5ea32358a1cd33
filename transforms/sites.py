"""Sites: every place of a file where the old world shows, each of which gets exactly one finding."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property

from .analysis.objects import is_anything
from .analysis.symbols import DDP, FSDP1, canonical, is_old, is_old_module
from .analysis.values import (
    Annotated,
    Bound,
    ClassValue,
    Constant,
    Derived,
    External,
    FunctionValue,
    Instance,
    Kept,
    Opaque,
    Unknown,
    Value,
    Wrapped,
)
from .groups import Group, Groups
from .introspection.plain import is_plain_receiver, wrapper_kinds
from .introspection.type_tests import OF_WRAPPED, classes_asked_for
from .members import MEMBERS, OF_DDP, RAW_MEMBERS, UNIQUE_MEMBERS, is_of_ddp, is_private
from .program import owner_of
from .ranks.conditions import last_name
from .sharding.wrap_blocks import is_enable_wrap, wraps_in
from .training.in_scope import means_a_model
from .view import FileView

_SYMBOL_OF_KIND = {"FSDP1": FSDP1, "DDP": DDP}

_FSDP1_ONLY = frozenset(
    {"summon_full_params", "state_dict_type", "set_state_dict_type", "clip_grad_norm_", "_fsdp_wrapped_module",
     "flat_param", "fsdp_modules", "check_is_root"}
)  # fmt: skip


_FSDP1_PACKAGE = "torch.distributed.fsdp."
_SHARDED_TENSOR = "torch.distributed._shard.sharded_tensor"


@dataclass(frozen=True, eq=False)
class Site:
    """One place. ``node`` is what a finding points at; ``role`` says in what way the symbol is used there.

    Roles: ``import``, ``call``, ``keyword``, ``isinstance``, ``annotation``, ``base``, ``reference`` (any other
    mention of a symbol), ``use`` (of an attribute of a value that is or may be wrapped), ``dynamic`` (such a use
    through ``getattr`` and its kin; the symbol is ``builtins.getattr.module``, say), ``hazard`` (found by a rule
    of its own).
    """

    view: FileView
    node: ast.AST
    symbol: str
    role: str
    group: Group | None = None
    values: tuple[Value, ...] = ()
    """For a use: what the receiver may be."""
    call: ast.Call | None = None
    """For a call or keyword: the call. For a use: the call of the attribute, if it is called."""
    keyword: ast.keyword | None = None

    @property
    def member(self) -> str:
        """Last component of the symbol."""
        return self.symbol.rpartition(".")[2]

    @property
    def certain(self) -> bool:
        """Whether the receiver can be nothing but a model of this group."""
        foreign = (Unknown, Opaque, Instance)
        raw = self.group.raw if self.group else set()
        if self.group is None and not any(isinstance(v, Wrapped) for v in self.values):
            return False  # only an annotation says so
        return bool(self.values) and not any(
            isinstance(v, foreign) and (v not in raw or is_anything(v)) for v in self.values
        )

    @property
    def maybe_plain(self) -> bool:
        """Whether a path without sharding reaches this place: the receiver may be the model before any wrap."""
        return any(value in self.group.raw for value in self.values) if self.group else False


class SiteFinder:
    """Finds the sites of one file."""

    groups: Groups

    def __init__(self, view: FileView) -> None:
        self.view = view
        self._symbols: dict[ast.expr, str | None] = {}

    def find(self, groups: Groups) -> list[Site]:
        """All sites, in the order of the text."""
        self.groups = groups
        sites = [self._fitted(site) for site in self._find()]
        return sorted(sites, key=lambda site: (self.view.source.span(site.node), site.role == "keyword"))

    def _fitted(self, site: Site) -> Site:
        """What stands in a subclass of a wrapper goes with what the subclass wraps; models that stay under DDP have no FSDP1."""
        wraps = site.role in ("call", "keyword") and site.call is not None and self.groups.of(self.view.values(site.call))
        if not wraps and not any(isinstance(value, Wrapped) for value in site.values):
            subclass = self.groups.subclasses.around(self.view, site.node)
            if subclass is not None:
                return replace(site, group=self.groups.of_subclass(subclass))
        if site.group is not None and site.group.stays_ddp and site.symbol.startswith(_FSDP1_PACKAGE):
            return replace(site, group=self._group_near(site.symbol))
        return site

    def _find(self) -> Iterator[Site]:
        for node in self._candidates:
            if isinstance(node, (ast.Import, ast.ImportFrom)):
                yield from self._imports(node)
            elif isinstance(node, (ast.Name, ast.Attribute)):
                yield from self._reference(node)
            elif len(node.args) >= 2:
                yield from self._dynamic(node)

    @cached_property
    def _candidates(self) -> list[ast.Import | ast.ImportFrom | ast.Name | ast.Attribute | ast.Call]:
        """The nodes that may be sites, whatever the groups are."""
        nodes = self.view.nodes(ast.Import, ast.ImportFrom, ast.Name, ast.Attribute, ast.Call)
        return [node for node in nodes if not isinstance(node, (ast.Name, ast.Attribute)) or self._may_be_site(node)]

    def _may_be_site(self, node: ast.Name | ast.Attribute) -> bool:
        if isinstance(node, ast.Attribute) and (node.attr in MEMBERS or node.attr in UNIQUE_MEMBERS or node.attr[0] == "_"):
            return True
        return self.symbol_of(node) is not None or self._wrapper_subclass(node) is not None

    def _imports(self, node: ast.Import | ast.ImportFrom) -> Iterator[Site]:
        for alias in node.names:
            if alias.name == "*" and isinstance(node, ast.ImportFrom):
                module = canonical(node.module or "")
                if not node.level and is_old_module(module):
                    yield Site(self.view, alias, f"{module}.*", "import")
                continue
            if isinstance(node, ast.Import):
                if is_old_module(alias.name):
                    yield Site(self.view, alias, canonical(alias.name), "import")
                continue
            name = self.view.external(alias)
            if name is None and not node.level:
                name = canonical(f"{node.module}.{alias.name}")
            if name is not None and (is_old(name) or is_old_module(name)):
                yield Site(self.view, alias, name, "import")

    # --- references to symbols ------------------------------------------------------------------------------

    def symbol_of(self, node: ast.expr) -> str | None:
        """The old symbol that an expression names, if it surely names one."""
        if node not in self._symbols:
            self._symbols[node] = self._symbol_of(node)
        return self._symbols[node]

    def _symbol_of(self, node: ast.expr) -> str | None:
        name = self.view.external(node)
        if name is None and isinstance(node, ast.Attribute):
            owner = self.symbol_of(node.value) or self.view.external(node.value)
            name = canonical(f"{owner}.{node.attr}") if owner else None
        return name if name is not None and is_old(name) else None

    def _reference(self, node: ast.Name | ast.Attribute) -> Iterator[Site]:
        symbol = self.symbol_of(node)
        if symbol is None:
            subclass = self._wrapper_subclass(node)
            if subclass is not None:
                yield from self._subclass_call(node, subclass)
            elif isinstance(node, ast.Attribute):
                for site in self._use(node):
                    yield from self._of_ddp_alone(site) if self._is_plain_here(node) else (site,)
            return
        parent = self.view.parents[node]
        if isinstance(parent, ast.Attribute) and self.symbol_of(parent) is not None:
            return
        if not isinstance(node.ctx, ast.Load) and not isinstance(node, ast.Attribute):
            return
        if isinstance(parent, ast.Call) and parent.func is node:
            yield from self._call(parent, symbol)
        elif self._through_variable(node, symbol):
            return
        else:
            yield Site(self.view, node, symbol, self._role(node), self._group_of_mention(node, symbol))

    def _through_variable(self, node: ast.expr, symbol: str) -> bool:
        """Whether a name or attribute merely holds a symbol (``config.strategy``), as opposed to naming it.

        The place that put the value there is the site; the name is one only as an alias of the symbol.
        """
        last = symbol.rpartition(".")[2]
        if symbol.rpartition(".")[0] in _ENUMS:
            return (node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", last)) != last
        return False

    def _call(self, call: ast.Call, symbol: str) -> Iterator[Site]:
        group = self._group_of_call(call, symbol)
        yield Site(self.view, call, symbol, "call", group, call=call)
        for keyword in call.keywords:
            name = keyword.arg or "**"
            written = f"{symbol}({name}=)" if keyword.arg else f"{symbol}(**)"
            yield Site(self.view, keyword, written, "keyword", group, call=call, keyword=keyword)

    def _group_of_call(self, call: ast.Call, symbol: str) -> Group | None:
        group = self.groups.of(self.view.values(call)) or self._group_of_block(call)
        if group is None and call.args:
            group = self.groups.of(self.view.values(call.args[0]))
        return group or self._group_near(symbol)

    def _group_of_block(self, call: ast.Call) -> Group | None:
        """The group of the wraps that a call of ``enable_wrap`` is for."""
        if not is_enable_wrap(self.view, call):
            return None
        return self.groups.of(v for wrap in wraps_in(self.view, call) for v in self.view.values(wrap))

    def _group_of_mention(self, node: ast.expr, symbol: str) -> Group | None:
        """The group of the wrap or of the setting that a mention is part of."""
        for ancestor in self.view.ancestors(node):
            if isinstance(ancestor, ast.Call):
                group = self.groups.of(self.view.values(ancestor)) or self._group_of_block(ancestor)
                if group is not None:
                    return group
            if isinstance(ancestor, ast.stmt):
                break
        by_choice = self.groups.of_strategies() if ".ShardingStrategy" in symbol else None
        return by_choice or self._group_near(symbol)

    def _group_near(self, symbol: str) -> Group | None:
        """The group that a site without a receiver belongs to: the one wrapped in this file, or the only one.

        A tensor of sharded state may be any model's.
        """
        if symbol.startswith(_SHARDED_TENSOR):
            return None
        of_fsdp1 = symbol.startswith(_FSDP1_PACKAGE)
        everywhere = [group for group in self.groups.all if not (of_fsdp1 and group.stays_ddp)]
        here = [group for group in everywhere if any(wrap.view is self.view for wrap in group.wraps)]
        candidates = here if len(here) == 1 else everywhere
        return candidates[0] if len(candidates) == 1 else None

    def _likely_group(self, wrapper: str) -> Group | None:
        """The one group of the file or repository, if its wrapper has the attribute that is asked for."""
        group = self._group_near(wrapper)
        return group if group is not None and (wrapper == DDP or "FSDP1" in group.kinds) else None

    def _wrapper_subclass(self, node: ast.expr) -> str | None:
        for value in self.view.values(node):
            if isinstance(value, ClassValue):
                kind = self.view.program.flow.wrapper_kind(value)
                if kind is not None:
                    return kind
        return None

    def _subclass_call(self, node: ast.expr, kind: str) -> Iterator[Site]:
        parent = self.view.parents[node]
        if isinstance(parent, ast.Call) and parent.func is node:
            yield from self._call(parent, _SYMBOL_OF_KIND[kind])
        elif isinstance(getattr(node, "ctx", None), ast.Load):
            symbol = _SYMBOL_OF_KIND[kind]
            yield Site(self.view, node, symbol, self._role(node), self._group_near(symbol))

    def _role(self, node: ast.AST) -> str:
        """In what way a symbol is mentioned."""
        child = node
        for ancestor in self.view.ancestors(node):
            if isinstance(ancestor, ast.Call) and child in ancestor.args[1:2]:
                called = self.view.external(ancestor.func)
                if called in ("builtins.isinstance", "builtins.issubclass"):
                    return "isinstance"
            if isinstance(ancestor, ast.Compare) and self._asks_for_type(ancestor.left):
                return "isinstance"
            if isinstance(ancestor, ast.Assign) and isinstance(child, ast.Tuple) and self._only_in_tests(ancestor):
                return "isinstance"
            if isinstance(ancestor, ast.ClassDef) and child in ancestor.bases:
                return "base"
            if isinstance(ancestor, ast.arg) or (isinstance(ancestor, ast.AnnAssign) and child is ancestor.annotation):
                return "annotation"
            if isinstance(ancestor, (ast.FunctionDef, ast.AsyncFunctionDef)) and child is ancestor.returns:
                return "annotation"
            if isinstance(ancestor, ast.stmt):
                return "reference"
            child = ancestor
        return "reference"

    def _asks_for_type(self, node: ast.expr) -> bool:
        """``type(x)``, which is then compared with classes."""
        return isinstance(node, ast.Call) and self.view.external(node.func) == "builtins.type" and len(node.args) == 1

    def _only_in_tests(self, assignment: ast.Assign) -> bool:
        """Whether the names of a tuple are only ever the classes of a type test."""
        names = {target.id for target in assignment.targets if isinstance(target, ast.Name)}
        loads = [
            node for node in self.view.nodes(ast.Name)
            if node.id in names and isinstance(node.ctx, ast.Load)
        ]  # fmt: skip
        calls = [(load, self.view.parents[load]) for load in loads]
        return bool(calls) and all(
            isinstance(call, ast.Call)
            and load in call.args[1:2]
            and self.view.external(call.func) in ("builtins.isinstance", "builtins.issubclass")
            for load, call in calls
        )

    # --- uses of wrapped values -----------------------------------------------------------------------------

    def _use(self, node: ast.Attribute) -> Iterator[Site]:
        name = node.attr
        if name not in MEMBERS and name not in UNIQUE_MEMBERS and not name.startswith("_"):
            return
        values = tuple(v for v in self.view.values(node.value) if not isinstance(v, Constant))
        wrapped = [v for v in values if isinstance(v, (Wrapped, Annotated))]
        group = self.groups.of(values)
        parent = self.view.parents[node]
        call = parent if isinstance(parent, ast.Call) and parent.func is node else None
        if "FSDP1" not in {v.kind for v in wrapped} and any(self._puts_method(value, name) for value in values):
            return
        of_ddp = name not in _FSDP1_ONLY and any(isinstance(v, Kept) for v in values)
        if not wrapped and of_ddp and self._is_members_own(name, values):
            yield Site(self.view, node, f"{DDP}.{name}", "use", group, values, call)
        elif wrapped and (name in MEMBERS or name in UNIQUE_MEMBERS or is_private(name)):
            kinds = sorted({v.kind for v in wrapped}, reverse=True)
            if group is not None and name in RAW_MEMBERS and self._is_own_method(values, name):
                return
            symbol = FSDP1 if name in _FSDP1_ONLY else _SYMBOL_OF_KIND[kinds[0]]
            yield Site(self.view, node, f"{symbol}.{name}", "use", group, values, call)
        elif group is not None and name in RAW_MEMBERS and self._means_its_model(group, node.value, values):
            yield Site(self.view, node, f"torch.nn.Module.{name}", "use", group, values, call)
        elif name in UNIQUE_MEMBERS and not wrapped and self._may_be_wrapped(node, values, name):
            owner = FSDP1 if name in _FSDP1_ONLY else DDP
            yield Site(self.view, node, f"{owner}.{name}", "use", group or self._likely_group(owner), values, call)
        elif name == "module" and not wrapped and not any(isinstance(v, External) for v in values):
            if not OF_WRAPPED.isdisjoint(classes_asked_for(self.view, node.value)):
                yield Site(self.view, node, f"{DDP}.{name}", "use", group or self._likely_group(DDP), values, call)

    def _is_members_own(self, name: str, values: tuple[Value, ...]) -> bool:
        """Whether an attribute of models that stay under DDP is one of theirs, and not of a plain model as well."""
        if name in RAW_MEMBERS:
            return all(isinstance(value, Kept) for value in values)
        return is_of_ddp(name)

    def _means_its_model(self, group: Group, receiver: ast.expr, values: tuple[Value, ...]) -> bool:
        """Whether a receiver is the model of a group; one that may be anything has to be called a model."""
        models = [value for value in values if value in group.raw]
        if all(is_anything(value) for value in models):
            return means_a_model(models, last_name(receiver))
        return True

    def _dynamic(self, node: ast.Call) -> Iterator[Site]:
        """``getattr(model, "module")`` and its kin, by the name in quotes."""
        function, key = self.view.external(node.func), node.args[1]
        if function not in _DYNAMIC or not isinstance(key, ast.Constant) or not isinstance(key.value, str):
            return
        if key.value not in MEMBERS and key.value not in UNIQUE_MEMBERS:
            return
        values = tuple(v for v in self.view.values(node.args[0]) if not isinstance(v, Constant))
        group = self.groups.of(values)
        wrapped = any(isinstance(v, (Wrapped, Annotated)) for v in values)
        unknown = key.value in UNIQUE_MEMBERS and not any(isinstance(v, External) for v in values)
        if wrapped or unknown or (group is not None and key.value == "module"):
            yield Site(self.view, node, f"{function}.{key.value}", "dynamic", group, values, node)

    def _of_ddp_alone(self, site: Site) -> Iterator[Site]:
        """A use that no sharded model comes to, as one of models that stay under DDP where it is one of theirs."""
        kept = tuple(value for value in site.values if isinstance(value, Kept))
        if kept and site.member in OF_DDP:
            yield replace(site, symbol=f"{DDP}.{site.member}", values=kept)

    def _is_plain_here(self, node: ast.Attribute) -> bool:
        """Whether a test for the wrapper around this place says that the receiver is not wrapped, nor any part of it."""
        if node.attr in RAW_MEMBERS and self.groups.has_wrapped_parts:
            return False
        return is_plain_receiver(self.view, node.value, wrapper_kinds(self.view.values(node.value)))

    def _is_own_method(self, values: tuple[Value, ...], name: str) -> bool:
        """Whether the repository defines this method itself on all that the receiver may be."""
        return all(isinstance(v, Instance) and self.view.program.flow.has_member(v.cls, name) for v in values)

    def _is_own_attribute(self, owner: Instance, name: str) -> bool:
        """Whether the repository itself puts this attribute on an object that no wrapper is put around."""
        return self.groups.of([owner]) is None and bool(self.view.program.attribute(owner, name))

    def _puts_method(self, value: Value, name: str) -> bool:
        """Whether the repository itself gives an object a method of this name, which DDP would not have."""
        held = self.view.program.attribute(value, name) if isinstance(value, Instance) else []
        return any(isinstance(v, (FunctionValue, Bound)) for v in held)

    def _may_be_wrapped(self, node: ast.Attribute, values: tuple[Value, ...], name: str) -> bool:
        """Whether an attribute of an old wrapper is read off something that is not known to be anything else."""
        if any(isinstance(v, External) for v in values):
            return False
        for value in values:
            owner = owner_of(value)
            if isinstance(owner, Instance) and (self._is_own_method((owner,), name) or self._is_own_attribute(owner, name)):
                return False
            if isinstance(owner, Opaque) and owner.name.startswith(("accelerate.", "lightning.", "pytorch_lightning.")):
                return False
            if isinstance(value, Derived) and value.kind != "modules":
                return False
        return not (isinstance(node.value, ast.Call) and self.view.external(node.value.func) == "builtins.super")


_DYNAMIC = frozenset({"builtins.getattr", "builtins.hasattr", "builtins.setattr", "builtins.delattr"})

_ENUMS = frozenset(
    f"torch.distributed.fsdp.{name}"
    for name in ("ShardingStrategy", "StateDictType", "BackwardPrefetch", "OptimStateKeyType")
)
