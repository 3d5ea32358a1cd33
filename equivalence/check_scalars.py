"""The checks on numbers: loss, clipping, hyperparameters, gradient scaler."""

from __future__ import annotations

import math
from typing import Any

from .align import match_names, shared_steps
from .record import Event, Record
from .tolerance import Tolerance
from .verdict import CheckResult

IMPLEMENTATION = frozenset(("foreach", "fused", "capturable", "differentiable", "initial_lr"))
"""Entries of a parameter group that choose how a step is computed, or that a scheduler notes down: not what it is."""

NOT_LOADED = "this optimizer takes its first step here: its saved state, with the learning rate, or its scheduler was not loaded"
SCHEDULER_CAUSE = "the scheduler is missing, built on another optimizer, or stepped at another time"


def check_loss(old: Record, new: Record, tolerance: Tolerance) -> CheckResult:
    """The loss of every backward pass on every rank."""
    compared = 0
    for step in shared_steps(old, new):
        if old.micros(step) != new.micros(step):
            reason = f"at step {step} there were {new.micros(step)} backward passes, on the old side {old.micros(step)}"
            return CheckResult("loss", "fail", reason, step)
        for key in sorted(key for key in old.losses if key[0] == step):
            for rank, event in sorted(old.losses[key].items()):
                other = new.losses.get(key, {}).get(rank)
                if other is None:
                    return CheckResult("loss", "fail", f"at step {step} rank {rank} had no loss on the new side", step)
                size = _relative(event["value"], other["value"])
                compared += 1
                if size > tolerance.loss(step):
                    reason = (
                        f"at step {step} rank {rank}, backward pass {key[1]}: "
                        f"{_number(event['value'])} on the old side, {_number(other['value'])} on the new"
                    )
                    return CheckResult("loss", "fail", reason, step, difference=size if math.isfinite(size) else None)
    if not compared:
        return CheckResult("loss", "not compared", "no loss was recorded at a step that both sides made")
    how = "bit by bit" if tolerance.exact else "within the noise of the old side"
    return CheckResult("loss", "pass", f"{compared} losses are equal {how}")


def check_clipping(old: Record, new: Record, tolerance: Tolerance) -> CheckResult:
    """Calls that clip gradients: how many, over which parameters, with which limit, and the norm they found."""
    calls = 0
    for step in shared_steps(old, new):
        keys = sorted({key for side in (old, new) for key in side.clips if key[0] == step})
        for key in keys:
            if key not in new.clips or key not in old.clips:
                return _clip_missing(step, key in old.clips, (step + 1, key[1]) in new.clips)
            for rank in sorted(old.clips[key].keys() & new.clips[key].keys()):
                calls += 1
                failure = _compare_clip(old.clips[key][rank], new.clips[key][rank], tolerance.norm(step))
                if failure is not None:
                    failure.step = step
                    failure.reason = f"at step {step} rank {rank}: {failure.reason}"
                    return failure
    if not calls:
        return CheckResult("clipping", "not compared", "neither side clips gradients with a call that is known")
    return CheckResult("clipping", "pass", f"{calls} calls found the same norm and had the same limit")


def _clip_missing(step: int, in_old: bool, comes_later: bool) -> CheckResult:
    if in_old and comes_later:
        reason = f"at step {step} the old side clips gradients before the optimizer's step, the new one after it"
        return CheckResult("clipping", "fail", reason, step, causes=["the clip call has moved behind optimizer.step()"])
    if in_old:
        reason = f"at step {step} the old side clips gradients, the new one does not"
        causes = ["the clip call was dropped, or replaced by code of your own (a norm of local shards is not the norm)"]
        return CheckResult("clipping", "fail", reason, step, causes=causes)
    return CheckResult("clipping", "fail", f"at step {step} the new side clips gradients, the old one does not", step)


def _compare_clip(old: Event, new: Event, limit: float) -> CheckResult | None:
    for entry, text in (("kind", "kind of clipping"), ("max_norm", "limit"), ("norm_type", "type of norm")):
        unknown = entry == "norm_type" and (old.get(entry) is None or new.get(entry) is None)
        if old.get(entry) != new.get(entry) and not unknown:
            reason = f"the {text} is {new.get(entry)}, on the old side {old.get(entry)}"
            return CheckResult("clipping", "fail", reason)
    if old["total"] and new["total"] and old["covered"] / old["total"] != new["covered"] / new["total"]:
        reason = f"the call covers {_part(new)} of the optimizer, on the old side {_part(old)}"
        return CheckResult("clipping", "fail", reason, causes=["clip_grad_norm_ is given only a part of the model"])
    if old.get("norm") is None or new.get("norm") is None:
        return None
    size = _relative(old["norm"], new["norm"])
    if size > limit:
        reason = f"the norm is {_number(new['norm'])}, on the old side {_number(old['norm'])}"
        return CheckResult("clipping", "fail", reason, difference=size if math.isfinite(size) else None)
    return None


def _part(clip: Event) -> str:
    # FSDP1 with flat parameters has fewer of them, so that only the shares compare.
    return f"{clip['covered']} of {clip['total']} parameters"


def check_hyperparameters(old: Record, new: Record) -> CheckResult:
    """Learning rate, weight decay and the like of every parameter, at every step."""
    compared = 0
    for step, optimizer in sorted(old.hyperparameters.keys() & new.hyperparameters.keys()):
        ours, theirs = by_parameter(old, step, optimizer), by_parameter(new, step, optimizer)
        matched = match_names(ours, theirs)
        differing: dict[str, tuple[str, Any, Any, int]] = {}
        for names, values in ours.items():
            if names not in matched:
                continue
            compared += 1
            for entry, first, second in differing_entries(values, theirs[matched[names]]):
                known = differing.get(entry)
                differing[entry] = (min(names), first, second, 1) if known is None else (*known[:3], known[3] + 1)
        if differing:
            first = step == min(other for other, number in old.hyperparameters if number == optimizer)
            return _hyperparameters_differ(step, differing, len(ours), NOT_LOADED if first else SCHEDULER_CAUSE)
    if not compared:
        return CheckResult("hyperparameters", "not compared", "no optimizer step that both sides made was recorded")
    return CheckResult("hyperparameters", "pass", f"equal for every parameter at {len(old.hyperparameters)} steps")


def _hyperparameters_differ(
    step: int, differing: dict[str, tuple[str, Any, Any, int]], total: int, cause: str
) -> CheckResult:
    texts = [
        f"{entry} of {count} of {total} parameters is {second}, on the old side {first}"
        for entry, (_, first, second, count) in sorted(differing.items())
    ]
    name, first, second, _ = next(iter(differing.values()))
    numbers = isinstance(first, (int, float)) and isinstance(second, (int, float))
    size = _relative(float(first), float(second)) if numbers else None
    causes: list[str] = []
    if "lr" in differing:
        causes += [cause] if step else []
    if "weight_decay" in differing:
        causes.append("parameter groups are made by another rule: by p.dim(), by name, or not at all")
    return CheckResult(
        "hyperparameters", "fail", f"at step {step} {'; '.join(texts)}", step, name, difference=size, causes=causes
    )


def by_parameter(record: Record, step: int, optimizer: int) -> dict[frozenset[str], dict[str, Any]]:
    """The hyperparameters of each parameter (by all its names) in force during the step."""
    described = [
        event
        for events in record.optimizers.values()
        for event in events
        if event["optimizer"] == optimizer and event["step"] <= step
    ]
    if not described:
        return {}
    latest = max(event["step"] for event in described)
    found: dict[frozenset[str], dict[str, Any]] = {}
    for event in described:
        # Ranks hold different parameters of an FSDP1 optimizer; together they hold all.
        if event["step"] != latest:
            continue
        aliases = event.get("aliases", {})
        for group, values in zip(event["groups"], record.hyperparameters.get((step, optimizer), []), strict=False):
            for name in group["names"]:
                found[frozenset((name, *aliases.get(name, ())))] = values
    return found


def differing_entries(old: dict[str, Any], new: dict[str, Any]) -> list[tuple[str, Any, Any]]:
    """(entry, old value, new value) of what differs and matters."""
    return [
        (entry, old.get(entry), new.get(entry))
        for entry in sorted(old.keys() | new.keys())
        if entry not in IMPLEMENTATION and old.get(entry) != new.get(entry)
    ]


def check_scaler(old: Record, new: Record) -> CheckResult:
    """What the gradient scaler did: scales, infinities found, steps skipped. Numerically it can be invisible."""
    if not old.scaler and not new.scaler:
        return CheckResult("scaler", "not compared", "neither side uses a gradient scaler")
    if not new.scaler or not old.scaler:
        used, unused = ("old", "new") if old.scaler else ("new", "old")
        reason = f"the {used} side scales gradients, the {unused} one does not"
        return CheckResult(
            "scaler", "fail", reason, 0, causes=["the gradient scaler was lost" if used == "old" else "added"]
        )
    steps = set(shared_steps(old, new))
    for rank in sorted(old.scaler.keys() & new.scaler.keys()):
        first = [_scaler_event(event) for event in old.scaler[rank] if event["step"] in steps]
        second = [_scaler_event(event) for event in new.scaler[rank] if event["step"] in steps]
        for a, b in zip(first, second, strict=False):
            if a != b:
                step = min(a[0], b[0])
                reason = f"at step {step} rank {rank}: {_describe(b)}, on the old side {_describe(a)}"
                return CheckResult("scaler", "fail", reason, step, causes=_scaler_causes(a, b))
        if len(first) != len(second):
            return CheckResult(
                "scaler", "fail", f"rank {rank} made {len(second)} scaler calls, on the old side {len(first)}"
            )
    return CheckResult("scaler", "pass", "the same scales, the same skipped steps")


def _scaler_event(event: Event) -> tuple[Any, ...]:
    truths = [None if event.get(field) is None else bool(event[field]) for field in ("found_inf", "skipped")]
    return (event["step"], event["action"], event.get("optimizer"), event.get("scale"), *truths)


def _describe(event: tuple[Any, ...]) -> str:
    _, action, _, scale, found_inf, skipped = event
    extra = [f"scale {scale}"] if scale is not None else []
    extra += [f"infinities found: {'yes' if found_inf else 'no'}"] if found_inf is not None else []
    extra += ["the step skipped" if skipped else "the step made"] if skipped is not None else []
    return f"scaler.{action} ({', '.join(extra)})" if extra else f"scaler.{action}"


def _scaler_causes(old: tuple[Any, ...], new: tuple[Any, ...]) -> list[str]:
    if old[1] == "unscale" and new[1] != "unscale":
        return ["scaler.unscale_(optimizer) before clipping is missing: gradients are clipped while still scaled"]
    if old[1] == "step" and new[1] != "step":
        return ["optimizer.step() took the place of scaler.step(optimizer), which leaves out steps with infinite gradients"]
    return []


def _relative(a: float | None, b: float | None) -> float:
    """|a - b| / max(|a|, |b|); 0 for two equal or two NaN values, inf where only one is finite."""
    if a == b or (a is not None and b is not None and math.isnan(a) and math.isnan(b)):
        return 0.0
    if a is None or b is None or not math.isfinite(a) or not math.isfinite(b):
        return math.inf
    return abs(a - b) / max(abs(a), abs(b))


def _number(value: float | None) -> str:
    return "none" if value is None else f"{value:.9g}"
