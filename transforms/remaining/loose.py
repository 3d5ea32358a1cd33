"""Sites of no known group: whose they may be, and how what holds one thing holds another because of them."""

from __future__ import annotations

import ast
from collections.abc import Iterable

from ..findings import Level
from ..groups import Group
from ..judge import Judgement
from ..sites import Site
from .loud import is_loud


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
    return bool(holder.kinds & member.kinds)


def holder_of_group(group: Group, members: Iterable[Judgement], loose: Iterable[Judgement]) -> Judgement | None:
    """What holds a group although it lies in none: a hazard of any model, or a site that waits and would be silent."""
    members = list(members)
    for other in loose:
        if other.outcome.within is not None:
            if any(reaches(other, member) for member in members):
                return other
        elif other.kinds & group.kinds and (other.held_by is None or not is_loud(other.site)):
            return other
    return None
