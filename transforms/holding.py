"""Groups are applied whole or not at all: what holds one back, and what the options leave out."""

from __future__ import annotations

from .analysis.symbols import CONSTRUCTORS
from .findings import Level
from .groups import Group
from .judge import Judgement
from .migration import Migration, Options
from .remaining.loose import holder_of, holder_of_group, reaches, widen


def hold_groups(migration: Migration, judgements: list[Judgement]) -> None:
    """Holds back every group with a silent hazard, and those that the options exclude."""
    groups: dict[Group | None, list[Judgement]] = {}
    for judgement in judgements:
        groups.setdefault(judgement.site.group, []).append(judgement)
    holders: list[Judgement] = []
    for group, members in groups.items():
        reason = _excluded(members, migration.options)
        commented = [member for member in _rewritten(members) if member.suppressed]
        if reason:
            for member in _rewritten(members):
                member.hold(reason)
            for member in members:
                if member.is_made_to_raise:
                    member.hold(reason)
                    member.outcome.holds = True
        elif commented:
            _leave_out(members if group is not None else commented, commented[0])
        elif group is not None:
            holder = next((m for m in members if _is_holding(m)), None)
            if holder is not None:
                holders.append(holder)
                _hold(members, holder)
    loose = groups.pop(None, [])
    widen(judgements)
    holders.extend(member for member in loose if _is_holding(member))
    while True:
        held = sum(judgement.held_by is not None for judgement in judgements)
        _hold_loose(loose, holders)
        holders.extend(_hold_unwritten_wraps(migration, judgements, groups))
        holders.extend(_hold_groups_of_loose(groups, loose))
        if held == sum(judgement.held_by is not None for judgement in judgements):
            break
    _drop_needless(judgements)


def _drop_needless(judgements: list[Judgement]) -> None:
    """Leaves alone what would be made to raise for models of which none is rewritten."""
    rewritten = [j for j in _rewritten(judgements) if j.held_by is None and j.outcome.patches and j.site.role != "import"]
    for judgement in judgements:
        if judgement.is_made_to_raise and not any(reaches(judgement, other) for other in rewritten):
            judgement.hold("nothing is rewritten that would bring it here")


def _hold_unwritten_wraps(
    migration: Migration, judgements: list[Judgement], groups: dict[Group | None, list[Judgement]]
) -> list[Judgement]:
    """Holds groups with a wrap that stays, through a factory that cannot be rewritten, say; returns what stays."""
    constructors = [j for j in judgements if j.site.symbol in CONSTRUCTORS and j.site.role in ("call", "reference")]
    staying = [j for j in constructors if not j.applied and j.level is not Level.OK]
    by_call = {id(j.site.call): j for j in constructors if j.site.call is not None}
    found: list[Judgement] = []
    for group in migration.groups.all:
        for wrap in group.wraps:
            judgement = by_call.get(id(wrap.node))
            holder = judgement if judgement in staying else None
            if judgement is None:
                holder = next((j for j in staying if j.site.role == "reference"), None)
            if holder is not None:
                _hold(groups.get(group, []), holder)
                found.append(holder)
    return found


def _leave_out(members: list[Judgement], commented: Judgement) -> None:
    """A comment on a site that would be rewritten speaks for its whole group."""
    for member in members:
        member.suppressed = True
    for member in _rewritten(members):
        member.hold(f"a comment at {commented.place} leaves it out")


def _hold_loose(members: list[Judgement], holders: list[Judgement]) -> None:
    """Sites of no known group may belong to any model: what holds one of their kind holds them as well."""
    for member in members:
        holder = holder_of(member, holders)
        if holder is not None:
            _hold([member], holder)


def _hold_groups_of_loose(groups: dict[Group | None, list[Judgement]], loose: list[Judgement]) -> list[Judgement]:
    """Holds groups whose models may come to a place that belongs to none and stays as it is; returns what waits now."""
    waiting: list[Judgement] = []
    staying = [j for j in loose if _is_holding(j) or (j.held_by is not None and j.outcome.patches)]
    for group, members in groups.items():
        holder = holder_of_group(group, members, staying) if group is not None else None
        if holder is not None:
            fresh = [member for member in _rewritten(members) if member.held_by is None]
            _hold(members, holder)
            waiting.extend(fresh[:1])
    return waiting


def hold_back(judgements: list[Judgement], cause: Judgement, reason: str) -> None:
    """Leaves a site alone after all, and with it the rest of its group."""
    if cause.is_made_to_raise:
        _hold([j for j in judgements if reaches(cause, j)], cause)
    cause.hold(reason)
    if cause.site.group is not None:
        _hold([j for j in judgements if j.site.group is cause.site.group], cause)


def _hold(members: list[Judgement], holder: Judgement) -> None:
    cause = holder.held_by or holder
    for member in _rewritten(members):
        if member is not cause and member.held_by is None and member.site.role != "import":
            member.held_by = cause


def _rewritten(members: list[Judgement]) -> list[Judgement]:
    return [member for member in members if member.level in (Level.SAFE, Level.REVIEW)]


def _is_holding(judgement: Judgement) -> bool:
    return judgement.outcome.holds and judgement.level is Level.MANUAL and not judgement.suppressed


def _excluded(members: list[Judgement], options: Options) -> str:
    """Why the options leave a group out, empty if they do not."""
    rules = sorted({member.rule.id for member in members})
    ignored = next((rule for rule in rules if _matches(rule, options.ignore)), None)
    if ignored is not None:
        return f"--ignore leaves out the group, which needs {ignored}"
    if options.select and not any(_matches(rule, options.select) for rule in rules):
        return "--select leaves out the group"
    if options.level is Level.SAFE:
        doubtful = next((m for m in members if m.level is Level.REVIEW and m.held_by is None), None)
        if doubtful is not None:
            return f"--level safe leaves out the group, which has a review finding at {doubtful.place}"
    return ""


def _matches(rule: str, chosen: frozenset[str]) -> bool:
    return any(rule.startswith(prefix) for prefix in chosen)
