"""The checks on tensors: gradients, parameters, optimizer state, buffers."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from .align import Pair, pairs, recorded_steps
from .record import Record
from .sketch import Tensor, identical, relative_difference, replica_order, sketch_difference
from .tolerance import Tolerance
from .verdict import CheckResult


@dataclass
class TensorCheck:
    """A result with what it rests on: `differing` holds the names that differ at the first step that differs,
    `largest` the largest difference of every tensor over all steps, `first` the first step of each."""

    result: CheckResult
    differing: frozenset[str] = frozenset()
    largest: dict[str, float] = field(default_factory=dict)
    first: dict[str, int] = field(default_factory=dict)
    only_other_ranks: bool = False


@dataclass(frozen=True)
class _Difference:
    name: str
    text: str
    size: float
    rank: str | None = None
    lost: bool = False


def check_gradients(old: Record, new: Record, tolerance: Tolerance) -> TensorCheck:
    """Gradients before clipping, unscaled."""
    return _check("gradients", ("gradient",), old, new, tolerance)


def check_parameters(old: Record, new: Record, tolerance: Tolerance) -> TensorCheck:
    """All parameters before the first step, the trainable ones after each."""
    return _check("parameters", ("initial", "parameter"), old, new, tolerance)


def check_optimizer(old: Record, new: Record, tolerance: Tolerance) -> TensorCheck:
    """The state of the optimizer after each step."""
    return _check("optimizer", ("optimizer",), old, new, tolerance)


def check_buffers(old: Record, new: Record, tolerance: Tolerance) -> TensorCheck:
    """Buffers after each step, rank by rank."""
    return _check("buffers", ("buffer",), old, new, tolerance)


def check_clipped(old: Record, new: Record, tolerance: Tolerance) -> TensorCheck:
    """Gradients as the optimizer saw them, where a clip call reduced them."""
    return _check("clipping", ("clipped",), old, new, tolerance)


def _check(name: str, kinds: tuple[str, ...], old: Record, new: Record, tolerance: Tolerance) -> TensorCheck:
    check = TensorCheck(CheckResult(name, "pass", ""))
    compared = 0
    steps = sorted({(step, kind) for kind in kinds for step in recorded_steps(old, new, kind)})
    for step, kind in sorted(steps, key=lambda entry: (entry[0], kinds.index(entry[1]))):
        differences: list[_Difference] = []
        for pair in pairs(old, new, step, kind):
            compared += 1
            if pair.key.name in tolerance.negligible and kind != "initial":
                continue
            difference = _difference(pair, tolerance, step)
            size = relative_difference(pair.old, pair.new) if pair.old and pair.new else math.inf
            check.largest[pair.key.name] = max(check.largest.get(pair.key.name, 0.0), size)
            if difference is not None:
                differences.append(difference)
                check.first.setdefault(pair.key.name, step)
        if differences and check.result.outcome == "pass":
            _fail(check, step, kind, differences)
    if check.result.outcome == "pass":
        _pass(check, compared, len(steps), tolerance)
    return check


def _fail(check: TensorCheck, step: int, kind: str, differences: list[_Difference]) -> None:
    worst = max(differences, key=lambda difference: difference.size)
    more = f" (and {len(differences) - 1} more tensors)" if len(differences) > 1 else ""
    when = "before the first step" if kind == "initial" else f"at step {step}"
    check.result.outcome = "fail"
    check.result.reason = f"{when} {worst.text}{more}"
    if kind == "optimizer" and worst.lost:
        lost = {difference.name for difference in differences if difference.lost}
        check.result.reason = f"{when} there is no optimizer state for {len(lost)} of {len(check.largest)} parameters"
    check.result.step = step
    check.result.tensor = worst.name
    check.result.difference = worst.size if math.isfinite(worst.size) else None
    check.differing = frozenset(difference.name for difference in differences)
    check.only_other_ranks = all(difference.rank is not None for difference in differences)


def _pass(check: TensorCheck, compared: int, steps: int, tolerance: Tolerance) -> None:
    if not compared:
        check.result.outcome = "not compared"
        check.result.reason = "neither side recorded any"
        return
    count = len(check.largest)
    how = "bit by bit" if tolerance.exact else "within the noise of the old side"
    check.result.reason = f"{count} tensors at {steps} steps are equal {how}"
    if tolerance.negligible:
        check.result.reason += f"; {len(tolerance.negligible)} parameters with zero gradient left out"


def _difference(pair: Pair, tolerance: Tolerance, step: int) -> _Difference | None:
    old, new, name = pair.old, pair.new, pair.key.name
    what = f"{pair.key.state} of {name}" if pair.key.state else name
    if old is None or new is None:
        side = "old" if new is None else "new"
        return _Difference(name, f"{what} exists on the {side} side only", math.inf, lost=new is None)
    if old.unreadable or new.unreadable:
        return _Difference(name, f"{what} could not be read: {old.unreadable or new.unreadable}", math.inf)
    for problem in (_missing, _incomplete, _disagreeing):
        text = problem(old, new)
        if text:
            return _Difference(name, f"{what} {text}", math.inf)
    limit = tolerance.tensor(pair.key, step, old.dtype)
    if old.shape != new.shape and not (old.shape == () and new.shape == (1,)):
        return _Difference(name, f"{what} has shape {old.shape} on the old side, {new.shape} on the new", math.inf)
    if old.dtype != new.dtype and old.value is None and new.value is None:
        text = f"{what} is {old.dtype} on the old side, {new.dtype} on the new"
        return _Difference(name, text, relative_difference(old, new))
    size = relative_difference(old, new)
    if size > limit or (tolerance.exact and not identical(old, new)):
        return _Difference(name, f"{what} differs by {_amount(size)}{_norms(old, new)}", size)
    return _other_rank(name, what, old, new, limit)


def _missing(old: Tensor, new: Tensor) -> str | None:
    if old.missing == new.missing:
        return None
    return "has no gradient on the " + (
        "old side, but one on the new" if old.missing else "new side, but one on the old"
    )


def _incomplete(old: Tensor, new: Tensor) -> str | None:
    count = new.incomplete()
    if count is None or old.incomplete() == count:
        return None
    where = "on no rank" if count < new.numel else "on several ranks"
    return f"is held in part {where} of the new side: {count} of {new.numel} elements are there"


def _disagreeing(old: Tensor, new: Tensor) -> str | None:
    if new.replicas_agree() or not old.replicas_agree():
        return None
    return "differs between the ranks of the new side, which hold copies of it; on the old side they agree"


def _other_rank(name: str, what: str, old: Tensor, new: Tensor, limit: float) -> _Difference | None:
    """Copies that other ranks hold and that were apart on the old side already (buffers): compared one by one."""
    if old.replicas.keys() != new.replicas.keys():
        return None
    for rank in sorted(old.replicas, key=replica_order)[1:]:
        a, b = old.replicas[rank], new.replicas[rank]
        size = sketch_difference(a, b)
        if a.checksum != b.checksum and size >= limit:
            return _Difference(name, f"{what} differs by {_amount(size)} on rank {rank}", size, rank)
    return None


def _amount(size: float) -> str:
    return f"{size:.2g}" if math.isfinite(size) else "more than can be told (not finite)"


def _norms(old: Tensor, new: Tensor) -> str:
    if old.sketch is None or new.sketch is None or old.numel == 1:
        return ""
    return f" (norm {old.sketch.norm:.6g} on the old side, {new.sketch.norm:.6g} on the new)"
