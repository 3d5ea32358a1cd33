"""The units of both sides: modules whose parameters are gathered together."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from .record import Event, Record
from .verdict import CheckResult

COARSER = 1.25
"""From this factor on, the most that is gathered at one time has grown."""


def units(record: Record) -> list[Event]:
    """The units of the models that are trained, as recorded; none where nothing is sharded."""
    return [unit for model in record.models() for unit in model.get("unit_modules", [])]


def kept_elements(record: Record) -> int:
    """Elements that stay gathered from the forward to the backward pass."""
    return sum(unit["elements"] for unit in units(record) if unit["kept"])


def compare_units(old: Record, new: Record, step: int) -> Iterator[CheckResult]:
    """What no number of the training shows; the first steady `step` is where it begins to matter."""
    before, after = units(old), units(new)
    if not before or not after:
        return
    yield from _missing(before, after, step)
    ours, theirs = _shards(before), _shards(after)
    if len(ours) > 1 and ours != theirs:
        reason = f"shards are held by ranks {_listed(theirs)} together, on the old side by ranks {_listed(ours)}"
        cause = "the mesh has no replicate dimension, or shards over the wrong one (HYBRID_SHARD: replicate, shard)"
        yield CheckResult("communication", "fail", reason, step, causes=[cause], conclusive=True)


def _missing(before: list[Event], after: list[Event], step: int) -> Iterator[CheckResult]:
    present = {unit["module"] for unit in after}
    missing = [unit for unit in before if unit["module"] not in present]
    if not missing:
        return
    left = Counter(unit["class"] for unit in after)
    odd = [unit for unit in missing if left[unit["class"]]]
    peaks = _peak(before), _peak(after)
    if odd or peaks[1] > COARSER * peaks[0]:
        unit = (odd or missing)[0]
        grown = f"up to {peaks[1]} elements are gathered at one time, on the old side {peaks[0]}"
        reason = f"{unit['module'] or 'the root'} ({unit['class']}) is no unit any more; {grown}"
        causes = [f"fully_shard is not called on {unit['module'] or 'the root'}"]
        yield CheckResult("communication", "fail", reason, step, unit["module"], causes=causes, conclusive=True)


def _peak(found: list[Event]) -> int:
    """Elements that are gathered at one time: what stays gathered, and the largest of the other units."""
    others = [unit["elements"] for unit in found if not unit["kept"]]
    return sum(unit["elements"] for unit in found if unit["kept"]) + max(others, default=0)


def _shards(found: list[Event]) -> list[int]:
    """The ranks that hold the largest unit together."""
    return sorted(max(found, key=lambda unit: unit["elements"])["ranks"])


def _listed(ranks: list[int]) -> str:
    return ", ".join(map(str, ranks))
