"""Reads of model and optimizer state: every call that takes the state of a group's model or optimizer."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from ..analysis.symbols import FSDP1
from ..analysis.values import Annotated, Derived, External, Instance, Opaque, Optimizer, Unknown, Value, Wrapped
from ..groups import Group
from ..introspection.plain import is_not_ddp, is_plain, is_plain_receiver, wrapper_kinds
from ..keeping import may_be_kept
from ..migration import Migration
from ..program import owner_of
from ..sites import RAW_MEMBERS, Site
from ..text.patches import Part
from ..training.conditions import conditions_of, conditions_of_group, may_meet_ddp
from ..training.in_scope import model_at
from ..view import FileView
from .contexts import bound_arguments
from .unwrapped import was_unwrapped

OPTIMIZER_READS = ("optim_state_dict", "full_optim_state_dict", "sharded_optim_state_dict")
NOT_A_MODEL = re.compile(
    r"optim|sched|scaler|loader|sampler|dataset|metric|timer|logger|callback|meter", re.IGNORECASE
)


@dataclass(frozen=True, eq=False)
class StateRead:
    """One call that reads state: ``model.state_dict()``, ``optimizer.state_dict()`` or ``FSDP.optim_state_dict(…)``."""

    view: FileView
    call: ast.Call
    group: Group | None
    kind: str
    """``model`` or ``optimizer``."""
    model: ast.expr | Part | None
    """The model, as a node of this place or as text; None where nothing in scope refers to it."""
    optimizer: ast.expr | Part | None = None
    legacy: str = ""
    """Name of the static method of FSDP1, empty for a plain ``state_dict()``."""
    prefixed: bool = False
    """Whether the keys carry DDP's ``module.``."""
    is_argument: bool = False
    """Whether the state is handed to the call (``save_pretrained``) instead of taking its place."""
    may_be_ddp: bool = False
    """Whether a model that stays under DDP, or its optimizer, may be what is read."""
    may_lose_prefix: bool = False
    """Whether they did on some paths only, so that it cannot be given back."""

    @property
    def statement(self) -> ast.stmt:
        return self.view.statement(self.call)


def reads(migration: Migration) -> list[StateRead]:
    """All reads of state that belong to a group, in the order of files and text."""
    return migration.once("state reads", None, lambda: _find_reads(migration))


def read_of(migration: Migration, call: ast.Call) -> StateRead | None:
    """The read that a call is."""
    return next((read for read in reads(migration) if read.call is call), None)


def _find_reads(migration: Migration) -> list[StateRead]:
    found: list[StateRead] = []
    for sites in (*(migration.sites[path] for path in sorted(migration.sites)), hidden_uses(migration)):
        for site in sites:
            if site.call is None or site.role not in ("use", "call", "hazard"):
                continue
            if site.role != "call" and site.member == "state_dict" and isinstance(site.node, ast.Attribute):
                found.extend(_read_at(migration, site, site.node.value))
            elif site.member in OPTIMIZER_READS:
                read = legacy_read(site)
                if read is not None:
                    found.append(read)
    known = {read.call for read in found}
    for view, call, group in optimizer_calls(migration, "state_dict"):
        if call in known or not isinstance(call.func, ast.Attribute):
            continue
        known.add(call)
        model = model_at(migration.groups, view, call, group)
        may_be_ddp = may_be_of_ddp(migration, view, call, call.func.value, group)
        found.append(StateRead(view, call, group, "optimizer", model, call.func.value, may_be_ddp=may_be_ddp))
    found.sort(key=lambda read: (read.view.path, read.view.source.span(read.call)))
    return found


def hidden_uses(migration: Migration) -> list[Site]:
    """Uses of ``state_dict`` and ``load_state_dict`` that no value shows to be of a wrapped model.

    They stand under a ``state_dict_type`` of the same receiver, or their receiver is a part of a wrapped model.
    """

    def find() -> list[Site]:
        known = {site.node for sites in migration.sites.values() for site in sites}
        return [site for site in _hidden_uses(migration) if site.node not in known]

    return migration.once("hidden uses", None, find)


def _hidden_uses(migration: Migration) -> Iterator[Site]:
    flow = migration.program.flow
    files = {view.index for view in migration.views()}
    named = _contexts_by_receiver(migration)
    for number, call in enumerate(flow.calls):
        if call.method not in RAW_MEMBERS or flow.file_of_call(number) not in files:
            continue
        view, node = migration.program.call_node(number)
        function = node.func
        if not isinstance(function, ast.Attribute) or NOT_A_MODEL.search(last_name(function.value)):
            continue
        values = tuple(view.values(function.value))
        if any(isinstance(v, Optimizer) for v in values) or _is_plain(migration, view, function):
            continue
        is_outside = any(isinstance(v, External) for v in values)
        if is_outside and not (isinstance(function.value, ast.Attribute) and function.value.attr == "module"):
            continue
        if (view.function(node), view.text(function.value)) in named:
            yield Site(view, function, f"{FSDP1}.{call.method}", "hazard", None, values, node)
            continue
        group = migration.groups.of(_modules_of_models(values)) or _group_of_part(migration, view, function.value)
        if group is not None:
            yield Site(view, function, f"torch.nn.Module.{call.method}", "hazard", group, values, node)


def _modules_of_models(values: Iterable[Value]) -> list[Value]:
    """What was taken from a model as one of its modules: ``for name, child in model.named_children()``."""
    return [value for value in values if isinstance(value, Derived) and value.kind == "modules"]


def _is_plain(migration: Migration, view: FileView, use: ast.Attribute) -> bool:
    """Whether a test says that the receiver is not wrapped; where nothing is known of it, by any wrapper there is."""
    if migration.groups.has_wrapped_parts:
        return False
    kinds = wrapper_kinds(view.values(use.value)) or {kind for group in migration.groups.all for kind in group.kinds}
    return is_plain_receiver(view, use.value, kinds)


def is_beside_plain(migration: Migration, view: FileView, node: ast.AST, group: Group) -> bool:
    """Whether a test says that the group's model is not wrapped at a place where its optimizer is used."""
    return is_plain(view, node, lambda tested: migration.groups.of(view.values(tested)) is group, group.kinds)


def _contexts_by_receiver(migration: Migration) -> set[tuple[ast.AST | None, str]]:
    """(function, text of the model) for every ``state_dict_type`` and ``set_state_dict_type``."""
    found: set[tuple[ast.AST | None, str]] = set()
    for sites in migration.sites.values():
        for site in sites:
            if site.member not in ("state_dict_type", "set_state_dict_type") or site.call is None:
                continue
            arguments = bound_arguments(site.call, ("module",))
            function = site.call.func
            model = arguments.get("module") if site.role == "call" else getattr(function, "value", None)
            if isinstance(model, ast.expr):
                found.add((site.view.function(site.call), site.view.text(model)))
    return found


def _group_of_part(migration: Migration, view: FileView, receiver: ast.expr) -> Group | None:
    """The group of the model that a receiver is a part of: ``model.module.encoder``, ``model.blocks[0]``."""
    node = receiver
    while isinstance(node, (ast.Attribute, ast.Subscript)):
        node = node.value
        values = [v for v in view.values(node) if not isinstance(v, (Optimizer, Unknown))]
        group = migration.groups.of(values)
        if group is not None:
            return group if any(isinstance(v, (Wrapped, Annotated)) or v in group.raw for v in values) else None
    return None


def _read_at(migration: Migration, site: Site, receiver: ast.expr) -> list[StateRead]:
    """The read that ``receiver.state_dict()`` is; none where it has nothing to do with sharding."""
    view, call, group = site.view, site.call, site.group
    if call is None or of_another_program(migration, site):
        return []
    if is_optimizer(site) and group is not None:
        model = model_at(migration.groups, view, call, group)
        may_be_ddp = may_be_of_ddp(migration, view, call, receiver, group)
        return [StateRead(view, call, group, "optimizer", model, receiver, may_be_ddp=may_be_ddp)]
    if before_wrap(migration, site):
        return []
    prefixed = is_prefixed(site)
    may_lose = not prefixed and any(isinstance(v, Wrapped) and v.kind == "DDP" for v in site.values)
    may_lose = may_lose and not _was_plain(site) and not was_unwrapped(migration, view, receiver)
    may_be_ddp = may_meet_ddp(site, call)
    return [
        StateRead(view, call, group, "model", receiver, prefixed=prefixed, may_lose_prefix=may_lose, may_be_ddp=may_be_ddp)
    ]


def may_be_of_ddp(migration: Migration, view: FileView, call: ast.Call, optimizer: ast.expr, group: Group) -> bool:
    """Whether an optimizer may be that of a model that stays under DDP."""
    if not may_be_kept(group.raw):
        return False
    built = [value for value in view.values(optimizer) if isinstance(value, Optimizer)]
    held = [v for value in built for v in migration.program.elements(migration.program.attribute(value, "params"))]
    owners = {owner_of(value) for value in held}
    if owners and all(isinstance(owner, Wrapped) for owner in owners):
        return False
    if is_not_ddp(view, call, lambda tested: may_be_kept(view.values(tested))):
        return False
    here = conditions_of(view, call)
    return not any(conditions <= here for conditions in conditions_of_group(group))


def legacy_read(site: Site) -> StateRead | None:
    """``FSDP.optim_state_dict(model, optimizer)`` and its kin, also as a method of the model."""
    call, group = site.call, site.group
    assert call is not None
    names = ("model", "optim")
    if site.role == "use" and isinstance(site.node, ast.Attribute) and len(call.args) + len(call.keywords) == 1:
        # model.optim_state_dict(optimizer) is no form of FSDP1: the method is static
        return None
    arguments = bound_arguments(call, names)
    model, optimizer = arguments.get("model"), arguments.get("optim")
    if model is None or optimizer is None:
        return None
    return StateRead(site.view, call, group, "optimizer", model, optimizer, site.member)


def optimizer_calls(migration: Migration, method: str) -> list[tuple[FileView, ast.Call, Group]]:
    """Calls of a method of the optimizers of the groups, once for each group that may be meant."""

    def find() -> list[tuple[FileView, ast.Call, Group]]:
        program = migration.program
        found: list[tuple[FileView, ast.Call, Group]] = []
        for number, call in enumerate(program.flow.calls):
            if call.method != method:
                continue
            values = program.flow.values_of(call.function)
            groups = groups_of_optimizers(migration, values)
            if groups:
                view, node = program.call_node(number)
                found.extend((view, node, group) for group in groups if not is_beside_plain(migration, view, node, group))
        return found

    return migration.once("optimizer calls", method, find)


def groups_of_optimizers(migration: Migration, values: Iterable[Value]) -> list[Group]:
    """The groups of the optimizers among values."""
    owned = (migration.groups.of([value]) for value in values if isinstance(value, Optimizer))
    return list(dict.fromkeys(group for group in owned if group is not None))


def before_wrap(migration: Migration, site: Site) -> bool:
    """Whether a use always runs before every wrap of its group.

    What a local name holds is known at each place; what an attribute holds, only over the whole program.
    """
    if site.group is None or any(isinstance(v, Annotated) for v in site.values):
        return False
    receiver = site.node
    while isinstance(receiver, ast.Attribute) and (receiver is site.node or receiver.attr == "module"):
        receiver = receiver.value
    if isinstance(receiver, ast.Name) and any(isinstance(v, Wrapped) for v in site.values):
        return False
    place = (site.view, site.node)
    relations = {migration.order.relation(place, (wrap.view, wrap.node)) for wrap in site.group.wraps}
    return relations - {"unknown"} == {"before"}


def of_another_program(migration: Migration, site: Site) -> bool:
    """Whether a model is only related to a wrapped one by the factory that makes both, as in scripts side by side."""
    if site.group is None or not all(isinstance(v, Opaque) and v.name == "?" for v in site.values):
        return False
    place = (site.view, site.node)
    return all(
        wrap.view is not site.view and migration.order.relation(place, (wrap.view, wrap.node)) == "unknown"
        for wrap in site.group.wraps
    )


def is_optimizer(site: Site) -> bool:
    """Whether a receiver is an optimizer: it may hold one, or its name says so and nothing says that it is a model."""
    if any(isinstance(v, Optimizer) for v in site.values):
        return True
    is_model = any(isinstance(v, (Wrapped, Annotated, Instance)) for v in site.values)
    if is_model or not isinstance(site.node, ast.Attribute):
        return False
    return "optim" in last_name(site.node.value).lower()


def is_prefixed(site: Site) -> bool:
    """Whether a state dict read here carries DDP's ``module.`` prefix."""
    wrapped = [v for v in site.values if isinstance(v, (Wrapped, Annotated))]
    return bool(wrapped) and all(v.kind == "DDP" for v in wrapped) and not site.maybe_plain and not _was_plain(site)


def _was_plain(site: Site) -> bool:
    """Whether a test of the program as it is says that the receiver has no wrapper."""
    node = site.node
    kinds = wrapper_kinds(site.values)
    return isinstance(node, ast.Attribute) and is_plain_receiver(site.view, node.value, kinds, once_migrated=False)


def last_name(node: ast.expr | Part | None) -> str:
    """The name that people would call a receiver by: ``netG`` for ``netG.module``."""
    if isinstance(node, ast.Attribute):
        return node.attr if node.attr != "module" else last_name(node.value)
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Call) and len(node.args) == 1:
        return last_name(node.args[0])  # ``unwrap(model)``
    return "other"
