"""Models of DDP that stay under it: for the user asks for it, or the program tells them from those of FSDP1."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from .analysis.symbols import DATA_PARALLEL, DDP, FSDP_MODULE
from .analysis.values import Annotated, Derived, Kept, Value, Wrapped
from .introspection.told_apart import acts_apart, tells_apart
from .program import Program, owner_of

if TYPE_CHECKING:
    from .groups import Group, Groups
    from .sites import Site
    from .view import FileView

_FULLY_SHARD = "torch.distributed.fsdp.fully_shard"


def reason_to_keep(program: Program, choice: str, groups: Groups, sites: Mapping[str, list[Site]]) -> str:
    """Why DDP stays, empty if it does not.

    Both wrappers would become FSDPModule. An answer that tells their models apart would then be yes for both, and what
    acts on it elsewhere would do for one what was meant for the other.
    """
    if choice == "keep":
        return "--ddp keep"
    of_ddp = [group for group in groups.all if "DDP" in group.kinds]
    sharded: set[Group | None] = {group for group in of_ddp if "FSDP1" in group.kinds}
    if len(sharded) < len(of_ddp):
        sharded |= _sharded_by_function(program, groups)
    mixed = [group for group in of_ddp if group in sharded]
    asking = [(site.view, site.node) for path in sorted(sites) for site in sites[path] if _may_ask(site, mixed)] if mixed else []
    if any("FSDP1" not in group.kinds for group in mixed):
        names = ((view, node) for view in program.views_with("FSDPModule") for node in view.nodes(ast.Name, ast.Attribute))
        asking += [(view, node) for view, node in names if view.external(node) == FSDP_MODULE]
    telling = next((place for place in asking if tells_apart(*place)), None) or _acting(sites, mixed)
    if telling is None:
        return ""
    view, node = telling
    return f"{view.path}:{view.line(node)} tells its models from those that are sharded"


def _acting(sites: Mapping[str, list[Site]], mixed: list[Group]) -> tuple[FileView, ast.AST] | None:
    """A test of models that both wrappers wrap, behind which the program goes another way of its own."""
    for path in sorted(sites):
        asking = [site for site in sites[path] if site.role == "isinstance" and site.group in mixed]
        work = {site.node for site in sites[path]} if asking else set[ast.AST]()
        telling = next((site for site in asking if acts_apart(site.view, site.node, work)), None)
        if telling is not None:
            return telling.view, telling.node
    return None


def _may_ask(site: Site, mixed: list[Group]) -> bool:
    return site.role == "isinstance" and (site.group is None or site.group in mixed)


def _sharded_by_function(program: Program, groups: Groups) -> set[Group | None]:
    """The groups on whose models the program itself calls fully_shard."""
    return {
        groups.of(view.values(call.args[0]))
        for view in program.views_with("fully_shard")
        for call in view.nodes(ast.Call)
        if call.args and view.external(call.func) == _FULLY_SHARD
    }


def keep_ddp(program: Program, reason: str) -> None:
    """Makes what DDP returns a value that no wrapper is to be taken off."""
    program.keeps_ddp = reason
    program.flow.exchange(_kept)


def _kept(value: Value) -> Value:
    if isinstance(value, Wrapped) and value.kind == "DDP":
        return Kept(value.site)
    if isinstance(value, Annotated) and value.kind == "DDP":
        return Kept(-1)
    if isinstance(value, Derived):
        return Derived(value.kind, _kept(value.owner))  # pyright: ignore[reportArgumentType]
    return value


def may_be_kept(values: Iterable[Value]) -> bool:
    """Whether a model that stays under DDP, or what is taken from one, is among values."""
    return any(isinstance(owner_of(value), Kept) for value in values)


def other_wrappers(program: Program) -> frozenset[str]:
    """The wrappers with a ``.module`` that models of this program may keep."""
    return DATA_PARALLEL | {DDP} if program.keeps_ddp else DATA_PARALLEL
