"""Sites of no known group: whose they may be, and how what holds one thing holds another because of them."""

from __future__ import annotations

import ast
from collections.abc import Iterable

from ..analysis.symbols import DDP, FSDP1, WRAPPERS
from ..analysis.values import Annotated, Wrapped
from ..findings import Level
from ..groups import Group
from ..judge import Judgement
from ..sites import Site
from .loud import is_loud

_FSDP1_MODULE = "torch.distributed.fsdp."
_BOTH = frozenset({"FSDP1", "DDP"})


def widen(judgements: list[Judgement]) -> None:
    """Takes the bounds off hazards that are not confined after all.

    What lies within them stays as it is, so all of it has to raise where it meets a model of FSDP2.
    """
    for hazard in judgements:
        within = hazard.outcome.within
        if within is not None and not all(_may_stay(judgement) for judgement in judgements if _lies_in(judgement.site, within)):
            hazard.outcome.within = None


def _may_stay(judgement: Judgement) -> bool:
    return judgement.outcome.within is not None or judgement.level is Level.OK or is_loud(judgement.site)


def _lies_in(site: Site, functions: frozenset[ast.AST]) -> bool:
    return any(node in functions for node in site.view.ancestors(site.node))


def holder_of(member: Judgement, holders: Iterable[Judgement]) -> Judgement | None:
    """What holds a site of no known group: it may belong to the same model; one in its own file is named first."""
    reaching = [holder for holder in holders if reaches(holder, member)]
    near = (holder for holder in reaching if holder.site.view is member.site.view)
    return next(near, reaching[0] if reaching else None)


def reaches(holder: Judgement, member: Judgement) -> bool:
    """Whether the hazard at one site may come true through another."""
    within = holder.outcome.within
    if within is not None and holder.site.group is None:
        return _lies_in(member.site, within)
    return bool(kinds_of(holder.site) & kinds_of(member.site))


def holder_of_group(group: Group, members: Iterable[Judgement], loose: Iterable[Judgement]) -> Judgement | None:
    """What holds a group although it lies in none: a hazard of any model, or a site that waits and would be silent."""
    members = list(members)
    for other in loose:
        if other.outcome.within is not None:
            if any(reaches(other, member) for member in members):
                return other
        elif kinds_of(other.site) & group.kinds and (other.held_by is None or not is_loud(other.site)):
            return other
    return None


def kinds_of(site: Site) -> frozenset[str]:
    """Which wrappers a site is about, as far as it is known."""
    if site.group is not None:
        return frozenset(site.group.kinds)
    if site.role == "isinstance":
        return _kinds_of_test(site)
    if site.role in ("use", "dynamic"):
        wrapped = [value for value in site.values if isinstance(value, (Wrapped, Annotated))]
        if wrapped and len(wrapped) == len(site.values):
            return frozenset(value.kind for value in wrapped)
        if site.symbol.startswith(DDP):
            return _BOTH  # it stands for either where nothing is known of the receiver
    return _kinds_of_symbol(site.symbol)


def _kinds_of_symbol(symbol: str) -> frozenset[str]:
    if symbol.startswith(DDP):
        return frozenset({"DDP"})
    return frozenset({"FSDP1"}) if symbol.startswith((FSDP1, _FSDP1_MODULE)) else _BOTH


def _kinds_of_test(site: Site) -> frozenset[str]:
    """One test for several wrappers is rewritten as a whole."""
    view = site.view
    test = next(node for node in view.ancestors(site.node) if isinstance(node, (ast.stmt, ast.Call, ast.Compare)))
    names = [view.external(node) or "" for node in ast.walk(test) if isinstance(node, (ast.Name, ast.Attribute))]
    return _kinds_of_symbol(site.symbol).union(WRAPPERS[name] for name in names if name in WRAPPERS)
