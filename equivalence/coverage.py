"""The check `coverage`: whether the runs can say anything about the change at all.

A comparison passes vacuously in more ways than one: an editable install makes the old side import the new code, a
script trains zero steps, the changed lines belong to a branch that was not taken.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from .align import match_names
from .changes import Changes, executed
from .launch import INJECT
from .record import Record
from .sides import Place
from .unproved import unproved
from .verdict import CheckResult, NotExecuted


@dataclass
class Coverage:
    """`blocking` says why nothing can be judged; None if it can be. `result` is the check itself."""

    result: CheckResult
    blocking: str | None = None
    not_executed: list[NotExecuted] = field(default_factory=list)
    unproved: str | None = None


def check_coverage(places: tuple[Place, Place], records: tuple[Record, Record], changes: Changes) -> Coverage:
    """Judges imports, executed changes, steps and parameters of both sides."""
    old, new = records
    lines = {path: ran for record in records for path, ran in record.lines.items()}
    ran, missed = executed(changes, lines)
    for problem in (_no_steps(places, records), _foreign_code(places, records, changes), _nothing_ran(changes, ran)):
        if problem is not None:
            return Coverage(CheckResult("coverage", "fail", problem), problem, missed)
    result = dead_parameters(new) or _other_counts(old, new) or _left_out(old, new)
    if result is None:
        result = CheckResult("coverage", "pass", _summary(old, changes, ran, missed))
    return Coverage(result, None, missed, unproved(changes, lines))


def _summary(old: Record, changes: Changes, ran: int, missed: list[NotExecuted]) -> str:
    lines = sum(len(entry.lines) for entry in missed)
    text = (
        f"{old.step_count} steps on {old.world} ranks; {ran} of {changes.statements} changed statements were executed"
    )
    if lines:
        text += f" ({lines} changed lines were not: see not_executed)"
    if changes.other:
        text += f"; also changed: {', '.join(list(changes.other)[:5])}{' and more' if len(changes.other) > 5 else ''}"
    return text


def _no_steps(places: tuple[Place, Place], records: tuple[Record, Record]) -> str | None:
    for place, record in zip(places, records, strict=True):
        if not record.starts:
            return f"the {place.side} side did not start a process group or train: nothing was recorded"
        if not record.step_count:
            own = "one of your own must derive from torch.optim.Optimizer"
            return f"the {place.side} side never stepped an optimizer of torch ({own})"
    return None


def _nothing_ran(changes: Changes, ran: int) -> str | None:
    if changes.statements and not ran:
        files = ", ".join(file.name for file in changes.files[:5])
        return f"neither side executed anything of what changed ({files}): the runs say nothing about the change"
    return None


def _foreign_code(places: tuple[Place, Place], records: tuple[Record, Record], changes: Changes) -> str | None:
    """Repository code that was imported from somewhere else than the side's own root."""
    for place, other, record in ((places[0], places[1], records[0]), (places[1], places[0], records[1])):
        elsewhere = [root for root in (place.original, other.original, other.top) if root != place.top]
        for event in record.modules.values():
            for module, name in sorted(event["files"].items()):
                file = Path(name)
                own = file.is_relative_to(place.top) or file.is_relative_to(INJECT)
                if not own and any(file.is_relative_to(root) for root in elsewhere):
                    return (
                        f"the {place.side} side imported {module} from {file}, which is not its own code: remove the "
                        "path that leads there (PYTHONPATH, an editable install) and run again"
                    )
            for module, name in sorted(event["installed"].items()):
                if _is_changed_package(module, changes):
                    return (
                        f"the {place.side} side imported {module} from {name}: an installed copy, not its own code; "
                        f"uninstall it, or put the directory that holds {module} on PYTHONPATH"
                    )
    return None


def _is_changed_package(module: str, changes: Changes) -> bool:
    """Whether a changed file belongs to a top-level package (or is a module) of this name."""
    for file in changes.files:
        parts = Path(file.name).with_suffix("").parts
        if parts[0] == "src":
            parts = parts[1:]
        if parts and parts[0] == module:
            return True
    return False


def dead_parameters(new: Record) -> CheckResult | None:
    """Parameters of an optimizer that no live module has: they are stepped, and nothing trains."""
    for rank, events in sorted(new.optimizers.items()):
        for event in events:
            dead = event["total"] - event["found"]
            if dead:
                reason = (
                    f"{dead} of {event['total']} parameters of {event['class']} on rank {rank} of the new side "
                    "belong to no module: stepping them trains nothing"
                )
                cause = "the optimizer was built before fully_shard, which replaces the parameters"
                places = [event["built_at"]] if event.get("built_at") else []
                return CheckResult("coverage", "fail", reason, event["step"], causes=[cause], places=places)
    return None


def _other_counts(old: Record, new: Record) -> CheckResult | None:
    if old.world != new.world:
        return CheckResult("coverage", "fail", f"the new side ran on {new.world} ranks, the old one on {old.world}")
    if old.step_count != new.step_count:
        reason = f"the new side made {new.step_count} optimizer steps, the old one {old.step_count}"
        return CheckResult("coverage", "fail", reason, min(old.step_count, new.step_count))
    return None


def _left_out(old: Record, new: Record) -> CheckResult | None:
    """Parameters that are in no optimizer of the new side, but are on the old side, or the other way round."""
    for number, before in _optimized(old).items():
        after = _optimized(new).get(number, [])
        matched = match_names(before, after)
        lost = [names for names in before if names not in matched]
        added = [names for names in after if names not in matched.values()]
        if before and after and len(lost) == len(before):
            first, second = min(map(min, before)), min(map(min, after))
            reason = f"no parameter has the same name on both sides ({first} on the old one, {second} on the new)"
            return CheckResult("coverage", "fail", reason, 0, first, causes=["the model's attributes were renamed"])
        for names, text in ((lost, "left the optimizer"), (added, "came into the optimizer")):
            if names:
                name = min(map(min, names))
                reason = f"{len(names)} of {len(before)} parameters {text} on the new side: {name}"
                cause = "a tie between parameters was broken, or they are frozen, renamed or filtered otherwise"
                return CheckResult("coverage", "fail", reason, 0, name, causes=[cause])
    return None


def _optimized(record: Record) -> dict[int, list[frozenset[str]]]:
    """The parameters of each optimizer, over all ranks, each with all its names."""
    found: dict[int, dict[frozenset[str], None]] = {}
    for events in record.optimizers.values():
        for event in events:
            aliases = event.get("aliases", {})
            names = (frozenset((name, *aliases.get(name, ()))) for group in event["groups"] for name in group["names"])
            found.setdefault(event["optimizer"], {}).update(dict.fromkeys(names))
    return {number: list(names) for number, names in found.items()}
