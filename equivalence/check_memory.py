"""Peak memory, and what is kept for the backward pass."""

from __future__ import annotations

from .record import Record
from .verdict import CheckResult

SAVED_GROWTH, SAVED_SLACK = 1.2, 64 << 10
"""What autograd keeps may grow by this factor and by this many bytes."""
PEAK_GROWTH = 1.2
RESIDENT_SLACK = 512 << 20


def check_memory(old: Record, new: Record) -> CheckResult:
    """Peak memory on a GPU; on the CPU what autograd keeps for the backward pass, which is where activation
    checkpointing shows."""
    before, after = _largest(old, "cuda_peak"), _largest(new, "cuda_peak")
    if before and after:
        return _compare("peak memory of a GPU", before, after, PEAK_GROWTH, 0)
    before, after = _largest(old, "saved"), _largest(new, "saved")
    if before is None or after is None:
        return CheckResult("memory", "not compared", "not measured: takes a second step on both sides")
    result = _compare("what is kept for the backward pass", before, after, SAVED_GROWTH, SAVED_SLACK)
    processes = _largest(old, "rss_peak"), _largest(new, "rss_peak")
    if result.outcome == "pass" and processes[0] and processes[1] and processes[1] > processes[0] * PEAK_GROWTH + RESIDENT_SLACK:
        # Of a process it is a hint only: allocators keep what they were given.
        reason = f"a process of the new side used up to {processes[1] >> 20} MiB, on the old side {processes[0] >> 20} MiB"
        cause = "a whole model, or whole optimizer state, is built on a rank"
        return CheckResult("memory", "fail", reason, difference=1 - processes[0] / processes[1], causes=[cause])
    if result.outcome == "fail":
        result.step = 1
        checkpointed = [sum(model["checkpointed"] for model in record.models()) for record in (old, new)]
        if checkpointed[1] < checkpointed[0]:
            result.causes = [
                f"activation checkpointing: {checkpointed[1]} modules are wrapped, on the old side {checkpointed[0]}"
            ]
    return result


def _compare(what: str, old: int, new: int, growth: float, slack: int) -> CheckResult:
    reason = f"{what}: {new} bytes, on the old side {old}"
    if new <= old * growth + slack:
        return CheckResult("memory", "pass", reason)
    return CheckResult("memory", "fail", reason, difference=(new - old) / max(old, new, 1), conclusive=True)


def _largest(record: Record, entry: str) -> int | None:
    values = [
        event["memory"][entry]
        for events in record.steps.values()
        for event in events.values()
        if event["memory"].get(entry) is not None
    ]
    return max(values, default=None)
