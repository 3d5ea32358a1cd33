"""The figures that a report draws, taken from two records."""

from __future__ import annotations

import math

from .check_communication import traffic
from .comparison import Comparison
from .record import Record
from .verdict import Series, TensorDifference


def build_series(comparison: Comparison) -> Series:
    """Losses, gradient norms, differences of every parameter, communication, memory and time of both sides."""
    sides = {"old": comparison.old, "new": comparison.new}
    return Series(
        losses={side: losses(record) for side, record in sides.items()},
        gradient_norms={side: gradient_norms(record) for side, record in sides.items()},
        parameters=_differences(comparison),
        communication={side: traffic(record) for side, record in sides.items()},
        memory={side: _memory(record) for side, record in sides.items()},
        step_seconds={side: _seconds(record) for side, record in sides.items()},
    )


def losses(record: Record) -> list[float | None]:
    """The mean over ranks and micro-steps, for each step."""
    values: list[list[float]] = [[] for _ in range(record.step_count)]
    for (step, _, _), events in record.losses.items():
        if step < record.step_count:
            values[step] += [event["value"] for event in events.values() if event["value"] is not None]
    return [_finite(sum(step) / len(step)) if step else None for step in values]


def gradient_norms(record: Record) -> list[float | None]:
    """The global norm before clipping, for each step at which gradients were recorded."""
    norms: list[float | None] = [None] * record.step_count
    for step, tensors in record.tensors.items():
        squares = [t.sketch.sumsq for key, t in tensors.items() if key.kind == "gradient" and t.sketch is not None]
        if squares and step < record.step_count:
            norms[step] = _finite(math.sqrt(sum(squares)))
    return norms


def _differences(comparison: Comparison) -> list[TensorDifference]:
    shapes: dict[str, list[int]] = {}
    for tensors in comparison.old.tensors.values():
        for key, tensor in tensors.items():
            if key.kind in ("gradient", "initial", "parameter"):
                shapes.setdefault(key.name, list(tensor.shape))
    checks = {field: comparison.tensors[field] for field in ("gradients", "parameters", "optimizer")}
    rows: list[TensorDifference] = []
    for name, shape in shapes.items():
        sizes = [_finite(check.largest.get(name)) for check in checks.values()]
        first = min((check.first[name] for check in checks.values() if name in check.first), default=None)
        rows.append(TensorDifference(name, shape, *sizes, step=first))
    return rows


def _memory(record: Record) -> list[int | None]:
    """The peak of each rank: of its GPU where it has one, else of the process."""
    peaks: list[int | None] = []
    for rank in sorted(record.starts):
        memories = [events[rank]["memory"] for events in record.steps.values() if rank in events]
        gpu = [memory["cuda_peak"] for memory in memories if memory.get("cuda_peak")]
        process = [memory["rss_peak"] for memory in memories if memory.get("rss_peak")]
        peaks.append(max(gpu or process, default=None))
    return peaks


def _seconds(record: Record) -> list[float]:
    """The slowest rank's time for each step."""
    return [max(event["seconds"] for event in record.steps[step].values()) for step in sorted(record.steps)]


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None
