"""Differences that come with the move to fully_shard and are meant: reported as *expected*, with the reason.

Each is claimed only where the record proves what it takes, and only from the first step and for the tensors that it
explains. Everything else stays a failure.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import isfinite

from .causes import ROUNDING
from .check_communication import SHARDED, volumes
from .check_scalars import by_parameter, differing_entries
from .comparison import Comparison
from .record import Record, TensorKey
from .verdict import CheckResult

LOW_PRECISION = frozenset(("bfloat16", "float16"))
LARGEST_ROUNDING = 0.05
"""Relative difference of a gradient that low-precision accumulation can explain: a dozen units of bfloat16."""
DECAY_MATCH = 1e-3
"""How well the difference after one step must agree with what weight decay alone would have made of it."""

AFFECTED = ("gradients", "clipping", "parameters", "optimizer", "buffers", "loss", "evaluation", "checkpoints")
"""What follows once gradients are other ones."""


@dataclass(frozen=True)
class Explanation:
    """Why `checks` differ from `step` on, the first of them being `origin`. `tensors`: the only ones that may differ
    at that step (None: any)."""

    reason: str
    origin: str
    step: int
    checks: frozenset[str]
    tensors: frozenset[str] | None = None
    needs_control: bool = False

    def confirmed(self, arguments: str) -> Explanation:
        """The same after a pair of control runs in which the difference vanished."""
        return replace(self, reason=f"{self.reason}; it vanishes in the control runs ({arguments})")


def explain(comparison: Comparison) -> list[Explanation]:
    """The intended differences that the record proves; empty if nothing differs."""
    found = [rule(comparison) for rule in RULES]
    return [explanation for explanation in found if explanation is not None]


def apply(comparison: Comparison, explanations: list[Explanation]) -> None:
    """Turns the failures that an explanation covers into *expected*."""
    for result in comparison.results.values():
        for explanation in explanations:
            if result.outcome == "fail" and _covers(explanation, result, comparison):
                first = result.name == explanation.origin
                result.outcome = "expected"
                result.reason += f": {explanation.reason}" if first else f": follows from {explanation.origin}"
                result.causes = []


def _covers(explanation: Explanation, result: CheckResult, comparison: Comparison) -> bool:
    if result.name not in explanation.checks:
        return False
    # Something that is missing, or of another shape, has no size; no rounding explains it.
    if result.difference is None or not isfinite(result.difference):
        return False
    if result.step is not None and result.step < explanation.step:
        return False
    if explanation.tensors is None or result.step != explanation.step:
        return True
    return comparison.differing.get(result.name, frozenset()) <= explanation.tensors


def low_precision_accumulation(comparison: Comparison) -> Explanation | None:
    """FSDP1 adds up the gradients of unsynchronised micro-steps in param_dtype, FSDP2 in reduce_dtype."""
    old, new = comparison.old, comparison.new
    gradients = comparison.results["gradients"]
    step = gradients.step
    if gradients.outcome != "fail" or step is None or gradients.difference is None:
        return None
    if gradients.difference > LARGEST_ROUNDING or comparison.fails_up_to("loss", step):
        return None
    if old.micros(step) < 2 or old.micros(step) != new.micros(step):
        return None
    if old.layouts() <= {"fsdp1", "fsdp1-flat"} and new.layouts() == {"fsdp2"}:
        gathered = [volumes(record, step)["all_gather"].dtypes for record in (old, new)]
        reduced = [volumes(record, step)["reduce_scatter"].dtypes for record in (old, new)]
        if not (gathered[0] == gathered[1] and gathered[0] & LOW_PRECISION and reduced == [{"float32"}] * 2):
            return None
        reason = (
            "FSDP1 adds up gradients under no_sync in the low-precision param_dtype, FSDP2 in reduce_dtype (float32), "
            f"which is more accurate; there are {old.micros(step)} micro-steps"
        )
    elif old.layouts() == {"ddp"} and new.layouts() == {"fsdp2"}:
        hook = volumes(old, step)["all_reduce"].dtypes
        if not (hook & LOW_PRECISION and hook == volumes(new, step)["reduce_scatter"].dtypes):
            return None
        reason = (
            "the compression hook of DistributedDataParallel compresses the sum of the micro-steps, FSDP2 adds them up "
            f"in the compressed reduce_dtype; there are {old.micros(step)} micro-steps"
        )
    else:
        return None
    return Explanation(reason, "gradients", step, frozenset(AFFECTED), needs_control=True)


def sum_reduced_again(comparison: Comparison) -> Explanation | None:
    """Without no_sync, DistributedDataParallel reduces the sum so far in each micro-step, FSDP2 what that step adds."""
    old, new = comparison.old, comparison.new
    gradients = comparison.results["gradients"]
    step = gradients.step
    if gradients.outcome != "fail" or step is None or gradients.difference is None:
        return None
    if gradients.difference > ROUNDING or comparison.fails_up_to("loss", step):
        return None
    if old.layouts() != {"ddp"} or new.layouts() != {"fsdp2"} or old.micros(step) < 2:
        return None
    elements = sum(t.numel for key, t in old.tensors[step].items() if key.kind == "gradient")
    if round(volumes(old, step)["all_reduce"].elements / max(elements, 1)) < 2:
        return None
    reason = (
        f"DistributedDataParallel reduces the sum so far again in each of {old.micros(step)} micro-steps, FSDP2 the "
        "gradients of each alone: the same but for rounding"
    )
    return Explanation(reason, "gradients", step, frozenset(AFFECTED), needs_control=True)


def decay_by_dimension(comparison: Comparison) -> Explanation | None:
    """Groups split by `p.dim()` after FSDP1 wrapped the model: its parameters are flat, so none of them decayed."""
    old, new = comparison.old, comparison.new
    step = comparison.results["hyperparameters"].step
    if comparison.results["hyperparameters"].outcome != "fail" or step != 0:
        return None
    if not old.layouts() <= SHARDED - {"fsdp2"} or new.layouts() != {"fsdp2"}:
        return None
    if comparison.fails_up_to("gradients", step) or comparison.fails_up_to("loss", step):
        return None
    ours, theirs = by_parameter(old, 0, 0), by_parameter(new, 0, 0)
    shapes = {name: tensor.shape for tensor in new.tensors.get(0, {}).values() for name in tensor.names}
    changed: set[str] = set()
    for names, values in ours.items():
        other = next((theirs[found] for found in theirs if found & names), None)
        if other is None or not names & shapes.keys():
            return None
        differing = [entry for entry, _, _ in differing_entries(values, other)]
        matrix = any(len(shapes.get(name, ())) >= 2 for name in names)
        if differing != (["weight_decay"] if matrix else []):
            return None
        if matrix and not _only_decay(old, new, names, values, other):
            return None
        changed |= names if matrix else set()
    reason = (
        "parameters were grouped by p.dim() after FSDP1 had flattened them to one dimension, so none of the matrices "
        "decayed on the old side; on the new side they do"
    )
    return Explanation(reason, "hyperparameters", 0, frozenset((*AFFECTED, "hyperparameters")), frozenset(changed))


def _only_decay(old: Record, new: Record, names: frozenset[str], before: dict, after: dict) -> bool:
    """Whether the parameter after the first step differs by exactly lr · Δdecay · its initial value."""
    found = []
    for record, kind in ((old, "initial"), (old, "parameter"), (new, "parameter")):
        tensors = record.tensors.get(0, {})
        tensor = next((tensors[key] for name in names if (key := TensorKey(kind, 0, name)) in tensors), None)
        if tensor is None or tensor.sketch is None:
            return False
        found.append(tensor.sketch)
    initial, ours, theirs = found
    rate = before["lr"] * (after["weight_decay"] - before["weight_decay"])
    left = [b - a + rate * x for x, a, b in zip(initial.projections, ours.projections, theirs.projections, strict=True)]
    predicted = sum((rate * x) ** 2 for x in initial.projections) ** 0.5
    # Parameters are stored rounded, which bounds how well a small decay can be seen.
    rounding = 1e-6 * initial.norm
    return sum(x * x for x in left) ** 0.5 <= DECAY_MATCH * predicted + rounding


def buffers_of_other_ranks(comparison: Comparison) -> Explanation | None:
    """DistributedDataParallel sends rank 0's buffers to all ranks before each forward pass; fully_shard does not."""
    if comparison.old.layouts() != {"ddp"} or comparison.new.layouts() != {"fsdp2"}:
        return None
    buffers = comparison.results["buffers"]
    if buffers.outcome != "fail" or not comparison.only_other_ranks or buffers.step is None:
        return None
    reason = (
        "rank 0's buffers are equal; DistributedDataParallel sends them to the other ranks before every forward pass, "
        "fully_shard leaves each rank its own. Broadcast them before an evaluation on several ranks"
    )
    return Explanation(reason, "buffers", buffers.step, frozenset(("buffers",)))


def evaluated_in_full_precision(comparison: Comparison) -> Explanation | None:
    """Under FSDP1's summon_full_params a model computes in its parameters' own precision, whatever its policy says."""
    old, result = comparison.old, comparison.results["evaluation"]
    step = result.step
    if result.outcome != "fail" or step is None or result.difference is None or result.difference > LARGEST_ROUNDING:
        return None
    if any(comparison.fails_up_to(name, step) for name in ("loss", "parameters", "buffers")):
        return None
    # The first pass through a unit brings it to rest, with its parameters still gathered.
    summoned = any(e.get("summoned") for events in old.evaluations.values() for e in events if e["step"] == step)
    policy = volumes(comparison.new, max(comparison.new.steps, default=0))["all_gather"].dtypes
    if not (summoned and policy & LOW_PRECISION):
        return None
    reason = (
        "under FSDP1's summon_full_params the model is evaluated in the precision of its parameters, under fully_shard "
        f"in that of the policy ({', '.join(sorted(policy))})"
    )
    return Explanation(reason, "evaluation", step, frozenset(("evaluation",)))


RULES: tuple[Callable[[Comparison], Explanation | None], ...] = (
    low_precision_accumulation,
    sum_reduced_again,
    decay_by_dimension,
    buffers_of_other_ranks,
    evaluated_in_full_precision,
)
