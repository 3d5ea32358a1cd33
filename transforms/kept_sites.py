"""What is said of sites that have only to do with models that stay under DDP."""

from __future__ import annotations

import ast

from .analysis.symbols import DDP, FSDP1
from .analysis.values import Annotated, Instance, Kept, Opaque, Unknown, Wrapped
from .findings import Level
from .introspection.plain import is_not_ddp, like
from .members import RAW_MEMBERS
from .migration import Migration
from .program import owner_of
from .rule import Outcome
from .sites import Site

_MACHINERY = ("torch.nn.parallel.", "torch.distributed.algorithms.", "torch.distributed.optim.")
"""Where what only DDP knows comes from."""


def kept_outcome(site: Site, migration: Migration) -> Outcome | None:
    """The finding of a site of DDP alone, where DDP stays; None for what also has to serve models that are sharded."""
    reason = migration.program.keeps_ddp
    if not reason or not _is_about_ddp(site, migration):
        return None
    if site.role == "call" and site.symbol == DDP and reason != "--ddp keep":
        return Outcome(
            Level.MANUAL,
            f"the model stays under DDP: {reason}, and both would be FSDPModule",
            "Nothing has to be done: DDP goes on working, and what uses its models is right for them. To shard them as well, "
            "note at the wrap how the model was wrapped (an attribute that says so), let the answers go by that note, and run "
            "the tool again.",
        )
    return Outcome(Level.OK, f"DDP stays as it is ({reason})")


def _is_about_ddp(site: Site, migration: Migration) -> bool:
    if site.role in ("use", "dynamic", "hazard"):
        return _is_of_kept_alone(site) or (not migration.groups.all and site.symbol.startswith(DDP))
    if site.symbol.startswith(DDP):
        return True
    return not migration.groups.all and site.symbol.startswith(_MACHINERY)


def _is_of_kept_alone(site: Site) -> bool:
    """Whether a receiver is a model under DDP wherever it has what is asked for."""
    if site.symbol.startswith(FSDP1):
        return False
    if isinstance(site.node, ast.Attribute) and is_not_ddp(site.view, site.node, like(site.node.value)):
        return False
    owners = {owner_of(value) for value in site.values}
    if not any(isinstance(owner, Kept) for owner in owners):
        return False
    others = (Wrapped, Annotated)
    if site.member in RAW_MEMBERS or site.role == "hazard":
        others = (Wrapped, Annotated, Instance, Opaque, Unknown)
    return not any(isinstance(owner, others) for owner in owners)
