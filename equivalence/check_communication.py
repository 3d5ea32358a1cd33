"""What the ranks send each other: how often gradients are reduced, what stays gathered, over which ranks it is sharded.

It decides only where the results of the training cannot show it: gradients that every micro-step reduces, parameters
that stay gathered, a unit that is missing, other ranks that hold the shards. Other numbers of calls are how it is done.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

from .align import shared_steps
from .record import Event, Record
from .units import compare_units, kept_elements, units
from .verdict import CheckResult, Traffic

SHARDED = frozenset(("fsdp1", "fsdp1-flat", "fsdp2"))
WHOLE = frozenset(("ddp", "replicate"))
SIZES = {"float64": 8, "float32": 4, "bfloat16": 2, "float16": 2}
PADDING = 1.25
"""FSDP1 pads a unit's flat parameter: bytes agree up to that."""
REDUCED_AGAIN = 1.1
"""From this factor on, more is reduced than before, where what fully_shard pads has been taken off."""
PARAM_DTYPE, REDUCE_DTYPE = "param_dtype of the mixed-precision policy differs", "reduce_dtype of the policy differs"
SMALL = 0.01
"""Share of the model's elements below which an all-reduce is a metric or a norm, not gradients."""


@dataclass
class Volume:
    """Collectives of one operation in a step: calls, bytes, elements, and the dtypes of the payload."""

    calls: int = 0
    bytes: int = 0
    elements: float = 0.0
    dtypes: frozenset[str] = frozenset()


def check_communication(old: Record, new: Record) -> CheckResult:
    """Collectives of every step after the first (which has the set-up as well): number, volume and type."""
    if old.world == new.world == 1:
        return CheckResult("communication", "not compared", "one rank has nobody to send anything to")
    steps = [step for step in shared_steps(old, new) if step > 0]
    if not steps:
        return CheckResult("communication", "not compared", "takes two steps: the first one has the set-up in it")
    layouts = old.layouts(), new.layouts()
    if layouts[0] <= SHARDED and layouts[1] <= SHARDED:
        return _compare_steps(old, new, steps)
    if layouts[0] <= WHOLE and layouts[1] <= SHARDED:
        return _compare_with_whole(old, new, steps)
    reason = f"no rule for {_listed(layouts[0])} against {_listed(layouts[1])}"
    return CheckResult("communication", "not compared", reason)


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
    found = [*compare_units(old, new, steps[0])]
    gathers: dict[int, list[CheckResult]] = {}
    for step in steps:
        ours, theirs = volumes(old, step), volumes(new, step)
        pairs = {op: (ours.get(op, Volume()), theirs.get(op, Volume())) for op in ("all_reduce", "reduce_scatter")}
        found += _at(step, _reduced(*pairs["all_reduce"], *pairs["reduce_scatter"], padding(new)))
        gathered = _at(step, _gathered(ours.get("all_gather", Volume()), theirs.get("all_gather", Volume()), old, new, step))
        gathers.update({step: gathered} if gathered else {})
    # Evaluating, saving and reading whole tensors gather as well, and not in the same pieces: a step that has none
    # of them in it shows what training gathers.
    if len(gathers) == len(steps) or found:
        found += [result for results in gathers.values() for result in results]
        gathers = {}
    if found:
        # A policy's reduce_dtype is its param_dtype where nothing else is said.
        return min(found, key=lambda result: (not result.conclusive, result.step or 0, PARAM_DTYPE not in result.causes))
    first = volumes(new, next(step for step in steps if step not in gathers))
    parts = [f"{first[op].calls} {op}" for op in ("all_gather", "reduce_scatter", "all_reduce") if op in first]
    reason = f"the same on both sides: {', '.join(parts) or 'nothing'} a step"
    if gathers:
        reason += f"; other gathering only at {len(gathers)} of {len(steps)} steps (evaluating, saving)"
    return CheckResult("communication", "pass", reason)


def _at(step: int, results: Iterator[CheckResult]) -> list[CheckResult]:
    found = list(results)
    for result in found:
        result.step = step
        result.reason = f"at step {step} {result.reason}"
    return found


def _reduced(sums: Volume, sums_new: Volume, old: Volume, new: Volume, padded: float) -> Iterator[CheckResult]:
    """Reductions of gradients: within the ranks that hold shards, and between copies of the model."""
    if other_types := list(_types("reduce_scatter", old, new)):
        yield from other_types
    elif old.calls and new.elements / padded > REDUCED_AGAIN * old.elements:
        cause = "gradients are reduced in more micro-steps than before: set_requires_gradient_sync(False) is missing"
        yield _calls("reduce_scatter", old, new, True, [cause])
    elif old.calls != new.calls:
        yield _calls("reduce_scatter", old, new, False, [_units_differ(old, new)])
    yield from _types("all_reduce", sums, sums_new)
    if bool(sums.calls) != bool(sums_new.calls):
        lost = ["the mesh has no replicate dimension (HYBRID_SHARD needs a 2-D mesh)"]
        yield _calls("all_reduce", sums, sums_new, not sums_new.calls, [] if sums_new.calls else lost)


def _gathered(old: Volume, new: Volume, record: Record, other: Record, step: int) -> Iterator[CheckResult]:
    yield from _types("all_gather", old, new)
    if new.elements * PADDING < old.elements:
        cause = "reshard_after_forward=False where the old side resharded (more memory, less traffic)"
        yield _calls("all_gather", old, new, _stays(record, other, new, step), [cause])
    elif new.elements > old.elements * PADDING:
        causes = [
            "reshard_after_forward is True where the old side kept parameters (the root included)",
            "SHARD_GRAD_OP with no_sync kept them over micro-steps: set_reshard_after_backward(is_last) does so",
        ]
        yield _calls("all_gather", old, new, False, causes)
    elif old.calls != new.calls:
        yield _calls("all_gather", old, new, False, [_units_differ(old, new)])


def _stays(old: Record, new: Record, gathered: Volume, step: int) -> bool:
    """Whether less traffic means that parameters stay gathered; the old side may have gathered for other reasons."""
    found = units(new)
    if not found or not units(old):
        return True
    once = sum(unit["elements"] for unit in found)
    training = max(1, new.micros(step)) * (2 * once - kept_elements(new))
    return kept_elements(new) > kept_elements(old) or gathered.elements * PADDING < training


def _types(op: str, old: Volume, new: Volume) -> Iterator[CheckResult]:
    if old.dtypes != new.dtypes and old.calls and new.calls:
        reason = f"{op} carries {_listed(new.dtypes)}, on the old side {_listed(old.dtypes)}"
        yield CheckResult("communication", "fail", reason, causes=[PARAM_DTYPE if op == "all_gather" else REDUCE_DTYPE])


def _calls(op: str, old: Volume, new: Volume, conclusive: bool, causes: list[str]) -> CheckResult:
    reason = f"the new side makes {new.calls} {op} calls of {new.bytes} bytes, the old one {old.calls} of {old.bytes} bytes"
    size = (new.bytes - old.bytes) / max(old.bytes, new.bytes) if old.bytes or new.bytes else None
    causes = [cause for cause in causes if cause]
    return CheckResult("communication", "fail", reason, difference=size, causes=causes, conclusive=conclusive)


def _units_differ(old: Volume, new: Volume) -> str:
    same = old.bytes and 1 / PADDING <= new.bytes / old.bytes <= PADDING
    return "the units differ: fully_shard is called on other modules than the old policy wrapped" if same else ""


def _compare_with_whole(old: Record, new: Record, steps: list[int]) -> CheckResult:
    """DistributedDataParallel against shards: not the same operations, but as many synchronisations of as much."""
    elements = _elements(old)
    if not elements:
        return CheckResult("communication", "not compared", "the number of trainable elements was not recorded")
    if not all(_first_rank(old, step).get("collectives_complete", False) for step in steps):
        reason = "what DistributedDataParallel's reducer sends is only seen in exact mode"
        return CheckResult("communication", "not compared", reason)
    found: list[CheckResult] = []
    for step in steps:
        reduced = volumes(old, step).get("all_reduce", Volume())
        scattered = volumes(new, step).get("reduce_scatter", Volume())
        before, after = round(reduced.elements / elements), round(scattered.elements / elements / padding(new))
        if before != after:
            reason = f"at step {step} all gradients are reduced {after} times, on the old side {before} times"
            cause = "gradients are reduced in more micro-steps than before: set_requires_gradient_sync(False) is missing"
            again = after > before
            causes = [cause] if again else []
            found.append(CheckResult("communication", "fail", reason, step, causes=causes, conclusive=again))
        elif scattered.dtypes != reduced.dtypes and reduced.calls:
            types = f"{_listed(scattered.dtypes)}, on the old side in {_listed(reduced.dtypes)}"
            reason = f"at step {step} gradients are reduced in {types}"
            same = volumes(new, step).get("all_gather", Volume()).dtypes == scattered.dtypes
            found.append(CheckResult("communication", "fail", reason, step, causes=[PARAM_DTYPE if same else REDUCE_DTYPE]))
    if found:
        return min(found, key=lambda result: not result.conclusive)
    gathered = volumes(new, steps[0]).get("all_gather", Volume())
    reason = (
        f"gradients are reduced as often as before; instead of whole parameters on every rank, the new side gathers "
        f"them, {gathered.calls} times a step ({gathered.elements / elements:.1f} times the model)"
    )
    return CheckResult("communication", "expected", reason)


def padding(record: Record) -> float:
    """How many times the elements of its gradients fully_shard sends: it pads their first dimension to the ranks."""
    held = {
        key.name: tensor.shape
        for tensors in record.tensors.values()
        for key, tensor in tensors.items()
        if key.kind == "gradient"
    }
    ranks = max((len(unit["ranks"]) for unit in units(record)), default=record.world)
    exact = sum(math.prod(shape) for shape in held.values())
    padded = sum(-(-shape[0] // ranks) * ranks * math.prod(shape[1:]) if shape else ranks for shape in held.values())
    return padded / exact if exact else 1.0


def _elements(record: Record) -> int:
    """Trainable elements of the model, from the first gradients that were recorded; else all its elements."""
    for step in sorted(record.tensors):
        gradients = [tensor for key, tensor in record.tensors[step].items() if key.kind == "gradient"]
        if gradients:
            return sum(tensor.numel for tensor in gradients)
    return sum(model["parameters"] for model in record.models())


def _listed(names: set[str] | frozenset[str]) -> str:
    return " and ".join(sorted(names)) or "nothing"
