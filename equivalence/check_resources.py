"""The checks that no number of the training shows: communication and memory."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

from .align import shared_steps
from .record import Event, Record
from .verdict import CheckResult, Traffic

SHARDED = frozenset(("fsdp1", "fsdp1-flat", "fsdp2"))
WHOLE = frozenset(("ddp", "replicate"))
SIZES = {"float64": 8, "float32": 4, "bfloat16": 2, "float16": 2}
PADDING = 1.25
"""FSDP1 pads a unit's flat parameter, FSDP2 the first dimension of each parameter: bytes agree up to that."""
SMALL = 0.01
"""Share of the model's elements below which an all-reduce is a metric or a norm, not gradients."""
SAVED_GROWTH, SAVED_SLACK = 1.2, 64 << 10
"""What autograd keeps may grow by this factor and by this many bytes."""
PEAK_GROWTH = 1.2


def check_communication(old: Record, new: Record) -> CheckResult:
    """Collectives of every step after the first (which has the set-up as well): number, volume and type."""
    steps = [step for step in shared_steps(old, new) if step > 0]
    if not steps:
        return CheckResult("communication", "not compared", "takes two steps: the first one has the set-up in it")
    layouts = old.layouts(), new.layouts()
    if layouts[0] <= SHARDED and layouts[1] <= SHARDED:
        return _compare_steps(old, new, steps)
    if layouts[0] <= WHOLE and layouts[1] <= SHARDED:
        return _compare_with_whole(old, new, steps)
    return CheckResult(
        "communication", "not compared", f"no rule for {_listed(layouts[0])} against {_listed(layouts[1])}"
    )


@dataclass
class Volume:
    """Collectives of one operation in a step: calls, bytes, elements, and the dtypes of the payload."""

    calls: int = 0
    bytes: int = 0
    elements: float = 0.0
    dtypes: frozenset[str] = frozenset()


def volumes(record: Record, step: int) -> dict[str, Volume]:
    """What rank 0 communicated in a step, by operation; floating-point payloads only, and no small all-reduces."""
    found: dict[str, Volume] = defaultdict(Volume)
    smallest = SMALL * _elements(record)
    for entry in _first_rank(record, step).get("collectives", []):
        elements = entry["bytes"] / SIZES.get(entry["dtype"], 1)
        if entry["dtype"] in SIZES and (entry["op"] != "all_reduce" or elements > smallest):
            volume = found[entry["op"]]
            volume.calls += entry["count"]
            volume.bytes += entry["bytes"]
            volume.elements += elements
            volume.dtypes |= {entry["dtype"]}
    return found


def traffic(record: Record) -> list[Traffic]:
    """The traffic of a steady step, for a plot."""
    step = min((step for step in record.steps if step > 0), default=max(record.steps, default=-1))
    return [
        Traffic(entry["op"], entry["dtype"], entry["count"], entry["bytes"])
        for entry in _first_rank(record, step).get("collectives", [])
    ]


def _first_rank(record: Record, step: int) -> Event:
    events = record.steps.get(step, {})
    return events[min(events)] if events else {}


def _compare_steps(old: Record, new: Record, steps: list[int]) -> CheckResult:
    failures: dict[str, dict[int, CheckResult]] = defaultdict(dict)
    for step in steps:
        ours, theirs = volumes(old, step), volumes(new, step)
        for op in ("all_gather", "reduce_scatter", "all_reduce"):
            failure = _compare_volume(op, ours.get(op, Volume()), theirs.get(op, Volume()), _has_frozen(old))
            if failure is not None:
                failure.step = step
                failure.reason = f"at step {step} {failure.reason}"
                failures[op][step] = failure
    # Evaluating, saving and reading whole tensors gather as well, and not in the same pieces: a step that has none
    # of them in it shows what training gathers.
    gathers = failures.pop("all_gather", {})
    if gathers and (failures or len(gathers) == len(steps)):
        failures["all_gather"] = gathers
    if failures:
        return min((found[min(found)] for found in failures.values()), key=lambda result: result.step or 0)
    first = volumes(new, next(step for step in steps if step not in gathers))
    parts = [f"{first[op].calls} {op}" for op in ("all_gather", "reduce_scatter", "all_reduce") if op in first]
    reason = f"the same on both sides: {', '.join(parts) or 'nothing'} a step"
    if gathers:
        reason += f"; other gathering only at {len(gathers)} of {len(steps)} steps (evaluating, saving)"
    return CheckResult("communication", "pass", reason)


def _has_frozen(record: Record) -> bool:
    return sum(model["parameters"] for model in record.models()) > _elements(record)


def _compare_volume(op: str, old: Volume, new: Volume, frozen: bool) -> CheckResult | None:
    if old.dtypes != new.dtypes and old.calls and new.calls:
        reason = f"{op} carries {_listed(new.dtypes)}, on the old side {_listed(old.dtypes)}"
        cause = "param_dtype of the mixed-precision policy" if op == "all_gather" else "reduce_dtype of the policy"
        return CheckResult("communication", "fail", reason, causes=[f"{cause} differs"])
    ratio = new.bytes / old.bytes if old.bytes else float(new.bytes > 0) * 2
    # FSDP1 reduces a unit's whole flat parameter, FSDP2 leaves out what is frozen in it.
    least = 0.0 if op == "reduce_scatter" and frozen else 1 / PADDING
    other_calls = old.calls != new.calls if op != "all_reduce" else bool(old.calls) != bool(new.calls)
    if other_calls or (old.bytes and not least <= ratio <= PADDING):
        reason = (
            f"the new side makes {new.calls} {op} calls of {new.bytes} bytes, "
            f"the old one {old.calls} of {old.bytes} bytes"
        )
        size = (new.bytes - old.bytes) / max(old.bytes, new.bytes) if old.bytes or new.bytes else None
        return CheckResult("communication", "fail", reason, difference=size, causes=_volume_causes(op, old, new))
    return None


def _volume_causes(op: str, old: Volume, new: Volume) -> list[str]:
    if op == "all_reduce":
        return ["the mesh has no replicate dimension (HYBRID_SHARD needs a 2-D mesh)"] if not new.calls else []
    same_bytes = old.bytes and 1 / PADDING <= new.bytes / old.bytes <= PADDING
    if same_bytes:
        return ["the units differ: fully_shard is called on other modules than the old policy wrapped"]
    if op == "reduce_scatter" and new.calls > old.calls:
        return ["gradients are reduced in more micro-steps than before: set_requires_gradient_sync(False) is missing"]
    if op == "all_gather" and new.calls < old.calls:
        return ["reshard_after_forward=False where the old side resharded (more memory, less traffic)"]
    if op == "all_gather" and new.calls > old.calls:
        return [
            "reshard_after_forward is True where the old side kept parameters (the root included)",
            "SHARD_GRAD_OP with no_sync kept them over micro-steps: set_reshard_after_backward(is_last) does so",
        ]
    return []


def _compare_with_whole(old: Record, new: Record, steps: list[int]) -> CheckResult:
    """DistributedDataParallel against shards: not the same operations, but as many synchronisations of as much."""
    elements = _elements(old)
    if not elements:
        return CheckResult("communication", "not compared", "the number of trainable elements was not recorded")
    if not all(_first_rank(old, step).get("collectives_complete", False) for step in steps):
        reason = "what DistributedDataParallel's reducer sends is only seen in exact mode"
        return CheckResult("communication", "not compared", reason)
    for step in steps:
        reduced = volumes(old, step).get("all_reduce", Volume())
        scattered = volumes(new, step).get("reduce_scatter", Volume())
        before, after = round(reduced.elements / elements), round(scattered.elements / elements)
        if before != after:
            reason = f"at step {step} all gradients are reduced {after} times, on the old side {before} times"
            return CheckResult(
                "communication", "fail", reason, step, causes=_volume_causes("reduce_scatter", reduced, scattered)
            )
        if scattered.dtypes != reduced.dtypes and reduced.calls:
            types = f"{_listed(scattered.dtypes)}, on the old side in {_listed(reduced.dtypes)}"
            reason = f"at step {step} gradients are reduced in {types}"
            return CheckResult("communication", "fail", reason, step, causes=["reduce_dtype of the policy differs"])
    gathered = volumes(new, steps[0]).get("all_gather", Volume())
    reason = (
        f"gradients are reduced as often as before; instead of whole parameters on every rank, the new side gathers "
        f"them, {gathered.calls} times a step ({gathered.elements / elements:.1f} times the model)"
    )
    return CheckResult("communication", "expected", reason)


def _elements(record: Record) -> int:
    """Trainable elements of the model, from the first gradients that were recorded; else all its elements."""
    for step in sorted(record.tensors):
        gradients = [tensor for key, tensor in record.tensors[step].items() if key.kind == "gradient"]
        if gradients:
            return sum(tensor.numel for tensor in gradients)
    return sum(model["parameters"] for model in record.models())


def check_memory(old: Record, new: Record) -> CheckResult:
    """Peak memory on a GPU; on the CPU what autograd keeps for the backward pass, which is where activation
    checkpointing shows."""
    before, after = _largest(old, "cuda_peak"), _largest(new, "cuda_peak")
    if before and after:
        return _compare_memory("peak memory of a GPU", before, after, PEAK_GROWTH, 0)
    before, after = _largest(old, "saved"), _largest(new, "saved")
    if before is None or after is None:
        return CheckResult("memory", "not compared", "not measured: takes a second step on both sides")
    result = _compare_memory("what is kept for the backward pass", before, after, SAVED_GROWTH, SAVED_SLACK)
    if result.outcome == "fail":
        result.step = 1
        checkpointed = [sum(model["checkpointed"] for model in record.models()) for record in (old, new)]
        if checkpointed[1] < checkpointed[0]:
            result.causes = [
                f"activation checkpointing: {checkpointed[1]} modules are wrapped, on the old side {checkpointed[0]}"
            ]
    return result


def _compare_memory(what: str, old: int, new: int, growth: float, slack: int) -> CheckResult:
    reason = f"{what}: {new} bytes, on the old side {old}"
    outcome = "fail" if new > old * growth + slack else "pass"
    return CheckResult(
        "memory", outcome, reason, difference=(new - old) / max(old, new, 1) if outcome == "fail" else None
    )


def _largest(record: Record, entry: str) -> int | None:
    values = [
        event["memory"][entry]
        for events in record.steps.values()
        for event in events.values()
        if event["memory"].get(entry) is not None
    ]
    return max(values, default=None)


def _listed(names: set[str] | frozenset[str]) -> str:
    return " and ".join(sorted(names)) or "nothing"
