"""What models answer in eval mode, rank by rank."""

from __future__ import annotations

import math
from collections import defaultdict

from .record import Event, Record
from .sketch import Sketch, sketch_difference
from .tolerance import Tolerance
from .verdict import CheckResult

Calls = dict[int, dict[int, list[Event]]]
"""step → rank → the calls of that rank, in order."""


def check_evaluation(old: Record, new: Record, tolerance: Tolerance) -> CheckResult:
    """The outputs of forward passes in eval mode. A rank that evaluates on one side only is not compared."""
    ours, theirs = _by_step(old), _by_step(new)
    compared, uneven = 0, 0
    for step in sorted(ours.keys() & theirs.keys()):
        for rank in sorted(ours[step].keys() & theirs[step].keys()):
            first, second = ours[step][rank], theirs[step][rank]
            if len(first) != len(second):
                uneven += 1
                continue
            for a, b in zip(first, second, strict=True):
                compared += 1
                result = _compare(a, b, tolerance.evaluation(step))
                if result is not None:
                    result.step = step
                    result.reason = f"after {step} steps rank {rank}, call {a['call']} of {b['class']}: {result.reason}"
                    return result
    other = f"; {uneven} times a rank made more or fewer such calls than before" if uneven else ""
    if not compared:
        reason = "no forward pass in eval mode was recorded on both sides" if not uneven else other.removeprefix("; ")
        return CheckResult("evaluation", "not compared", reason)
    how = "bit by bit" if tolerance.exact else "within the noise of the old side"
    return CheckResult("evaluation", "pass", f"the outputs of {compared} calls in eval mode are equal {how}{other}")


def _by_step(record: Record) -> Calls:
    calls: Calls = defaultdict(lambda: defaultdict(list))
    for rank, events in record.evaluations.items():
        for event in events:
            calls[event["step"]][rank].append(event)
    return calls


def _compare(old: Event, new: Event, limit: float) -> CheckResult | None:
    if [output["shape"] for output in old["outputs"]] != [output["shape"] for output in new["outputs"]]:
        return CheckResult("evaluation", "fail", "the outputs have other shapes than on the old side")
    for first, second in zip(old["outputs"], new["outputs"], strict=True):
        a, b = Sketch(), Sketch()
        a.add(first)
        b.add(second)
        size = sketch_difference(a, b)
        if a.checksum != b.checksum and size >= limit:
            text = f"{size:.2g}" if math.isfinite(size) else "more than can be told (not finite)"
            reason = f"the output differs by {text} from the old side's"
            return CheckResult("evaluation", "fail", reason, difference=size if math.isfinite(size) else None)
    return None
