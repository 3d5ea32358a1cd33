"""What most likely went wrong, from the pattern of what differs and what does not."""

from __future__ import annotations

from collections.abc import Iterator

from .align import pairs
from .checkpoints import VALUES
from .comparison import Comparison
from .record import Record
from .sketch import Sketch

SAME_FACTOR = 1e-3
"""How close to one common factor all gradients must be for it to be named."""
DEAD = "the optimizer holds parameters that the model no longer has: it was built before fully_shard (see coverage)"
CONSTANT = "training does not change this buffer: it was set, cast or loaded otherwise"
ROUNDING = 1e-6
"""Relative difference below which only the order of additions can differ."""


def add_causes(comparison: Comparison) -> None:
    """Puts causes on the failed results, the likeliest first; those that a check found itself stay in front."""
    for name, finder in FINDERS.items():
        result = comparison.results.get(name)
        if result is not None and result.outcome == "fail":
            result.causes = list(dict.fromkeys((*result.causes, *finder(comparison))))


def _step(comparison: Comparison, name: str) -> float:
    """The first step at which a check failed; infinity if it did not fail."""
    result = comparison.results.get(name)
    if result is None or result.outcome != "fail":
        return float("inf")
    return -1 if result.step is None else result.step


def _initial_differs(comparison: Comparison) -> bool:
    result = comparison.results["parameters"]
    return result.outcome == "fail" and result.reason.startswith("before the first step")


def _dead_parameters(comparison: Comparison) -> bool:
    """Whether the optimizer holds parameters that no model has: everything else follows from it."""
    result = comparison.results.get("coverage")
    return result is not None and result.outcome == "fail" and "belong to no module" in result.reason


def causes_of_parameters(comparison: Comparison) -> Iterator[str]:
    step = _step(comparison, "parameters")
    if _dead_parameters(comparison):
        yield DEAD
    elif _initial_differs(comparison):
        if _all_zero(comparison.new, "initial"):
            yield "the new side starts from zeros: after meta initialisation the weights were not initialised or loaded"
            return
        yield (
            "the ranks start from different weights, and fully_shard does not broadcast rank 0's as "
            "DistributedDataParallel and sync_module_states do: broadcast before sharding"
        )
        yield "initialisation or loading of weights was lost or comes at another point of the random sequence"
    elif _step(comparison, "coverage") <= step:
        yield "see coverage: the optimizer does not hold the parameters that are trained"
    elif _step(comparison, "gradients") <= step:
        yield "the gradients differ (see there)"
    else:
        if _step(comparison, "clipping") <= step:
            yield "gradients equal, parameters differ, and so does clipping"
        elif _step(comparison, "hyperparameters") <= step:
            yield "gradients equal, parameters differ: the hyperparameters of the optimizer (see there)"
        else:
            yield "gradients equal, parameters differ: optimizer groups or hyperparameters, or edited gradients"


def causes_of_gradients(comparison: Comparison) -> Iterator[str]:
    step = _step(comparison, "gradients")
    old, new = comparison.old, comparison.new
    reason = comparison.results["gradients"].reason
    if _dead_parameters(comparison):
        yield DEAD
    elif _initial_differs(comparison):
        yield "the weights differ before the first step (see parameters)"
    elif "no gradient on the new side" in reason and _has_gradients(new, int(max(step, 0))):
        yield "these parameters alone have none: they are frozen on the new side, or its forward or its loss leaves them out"
    elif "no gradient on the new side" in reason or ("old side only" in reason):
        yield "gradients are never synchronised again: set_requires_gradient_sync(True) before the last micro-step"
        yield "the optimizer was built before fully_shard, so that its parameters get no gradients"
    elif "but one on the new" in reason:
        yield (
            "set_reduce_scatter_unused_params gives parameters that no rank uses a gradient of zero, on which weight decay "
            "and moments act: freeze them, or keep them out of the optimizer"
        )
    elif "between the ranks" in reason:
        yield "these parameters are in no fully_shard unit (ignored_params, or an unsharded root): nothing reduces them"
        yield "the mesh has the wrong dimension"
    elif "part on several ranks" in reason:
        yield "the model is sharded over a mesh that does not span all ranks: the wrong dimension of the mesh was taken"
    elif step > 0 and _step(comparison, "parameters") >= step and _step(comparison, "loss") > step:
        yield "gradients of an earlier step are left over: zero_grad() is missing or does not reach these parameters"
    elif _step(comparison, "loss") > step and (comparison.results["gradients"].difference or 1.0) < ROUNDING:
        yield "rounding alone: another order of additions, as when every micro-step is reduced (see communication)"
    elif _step(comparison, "loss") > step:
        factor = common_factor(old, new, int(max(step, 0)))
        scales = [event["scale"] for events in new.scaler.values() for event in events if event.get("scale")]
        if factor is not None and any(abs(factor - scale) < SAME_FACTOR * scale for scale in scales if scale > 1):
            yield f"all gradients are {factor:.6g} times as large, the scaler's scale: unscale_() is missing or comes too late"
        elif factor is not None:
            yield _name_of_factor(factor, old.world, old.micros(int(max(step, 0))))
        yield "the loss is equal, its gradients are not: reduction (dtype, divide factor, synchronisation) or precision"
    else:
        yield "the loss differs as well: look there first"


def _has_gradients(record: Record, step: int) -> bool:
    """Whether some parameter has a gradient at a step."""
    found = (t.sketch for key, t in record.tensors.get(step, {}).items() if key.kind == "gradient")
    return any(sketch is not None and sketch.sumsq for sketch in found)


def _name_of_factor(factor: float, world: int, micros: int) -> str:
    if abs(factor - world) < SAME_FACTOR * world:
        return f"all gradients are {world} times as large: they are summed over the ranks, not averaged"
    if abs(factor * world - 1) < SAME_FACTOR:
        return f"all gradients are 1/{world} as large: they are divided by the number of ranks twice"
    if micros > 1 and abs(factor - micros) < SAME_FACTOR * micros:
        return f"all gradients are {micros} times as large: the loss is not divided by the number of micro-steps"
    return f"all gradients are {factor:.4g} times as large"


def common_factor(old: Record, new: Record, step: int) -> float | None:
    """The factor between all gradients of the two sides at a step; None if there is no common one (or it is 1)."""
    factors: list[float] = []
    for pair in pairs(old, new, step, "gradient"):
        first = pair.old.sketch if pair.old else None
        second = pair.new.sketch if pair.new else None
        if first is None or second is None or not first.sumsq:
            continue
        factor = _factor(first, second)
        if factor is None:
            return None
        factors.append(factor)
    if not factors or max(factors) - min(factors) > SAME_FACTOR * abs(factors[0]):
        return None
    return factors[0] if abs(factors[0] - 1) > SAME_FACTOR else None


def _factor(old: Sketch, new: Sketch) -> float | None:
    dot = sum(a * b for a, b in zip(old.projections, new.projections, strict=True))
    squares = sum(a * a for a in old.projections)
    if not squares:
        return None
    factor = dot / squares
    left = sum((b - factor * a) ** 2 for a, b in zip(old.projections, new.projections, strict=True))
    return factor if left <= (SAME_FACTOR * factor) ** 2 * squares else None


def causes_of_loss(comparison: Comparison) -> Iterator[str]:
    step = _step(comparison, "loss")
    if _dead_parameters(comparison):
        yield DEAD
    elif _initial_differs(comparison):
        yield "the weights differ before the first step (see parameters)"
    elif min(_step(comparison, "gradients"), _step(comparison, "parameters"), _step(comparison, "coverage")) < step:
        yield "follows from an earlier difference (see the check with the first step)"
    elif _first_rank_equal(comparison, int(max(step, 0))):
        yield "rank 0's loss is equal, other ranks' are not: they see other data (sampler, seed) or other buffers"
    elif _step(comparison, "gradients") == float("inf"):
        yield "gradients and parameters are equal: only the reported loss differs (output_dtype of the policy, scaling)"
    else:
        factor = _loss_factor(comparison, int(max(step, 0)))
        micros = comparison.old.micros(int(max(step, 0)))
        if factor is not None and micros > 1 and abs(factor - micros) < 1e-3:
            yield "the loss is not divided by the number of micro-steps"
        elif factor is not None and micros > 1 and abs(factor * micros - 1) < 1e-3:
            yield "the loss is divided by the number of micro-steps twice"
        if step > 0 and comparison.old.step_count != comparison.new.step_count:
            yield (
                f"the new side makes {comparison.new.step_count} steps, the old one {comparison.old.step_count}: "
                "steps are counted, or loaded, in another way, and the data follows them"
            )
        yield "the forward pass differs: precision policy, data, dropout seeds, buffers, or the model's configuration"


def _first_rank_equal(comparison: Comparison, step: int) -> bool:
    keys = [key for key in comparison.old.losses if key[0] == step]
    return all(
        comparison.old.losses[key].get(0, {}).get("value") == comparison.new.losses.get(key, {}).get(0, {}).get("value")
        for key in keys
    )


def _loss_factor(comparison: Comparison, step: int) -> float | None:
    old = comparison.old.losses.get((step, 0, 0), {}).get(0, {}).get("value")
    new = comparison.new.losses.get((step, 0, 0), {}).get(0, {}).get("value")
    return new / old if old and new else None


def causes_of_clipping(comparison: Comparison) -> Iterator[str]:
    step = _step(comparison, "clipping")
    if _step(comparison, "gradients") <= step:
        yield "the gradients differ before clipping (see there)"
    elif comparison.results["clipping"].difference is not None:
        yield "the gradients are equal, their norm is not: taken over local shards, other parameters, or scaled ones"


def causes_of_optimizer(comparison: Comparison) -> Iterator[str]:
    reason = comparison.results["optimizer"].reason
    if _dead_parameters(comparison):
        yield DEAD
    elif "no optimizer state for" in reason:
        yield "the optimizer was built before fully_shard, or these parameters never had a gradient"
    elif _step(comparison, "gradients") <= _step(comparison, "optimizer"):
        yield "the gradients differ (see there)"
    elif _step(comparison, "clipping") <= _step(comparison, "optimizer"):
        yield "clipping differs (see there)"
    else:
        yield "gradients equal, optimizer state differs: another optimizer, other betas, or state that was loaded"


def causes_of_evaluation(comparison: Comparison) -> Iterator[str]:
    step = _step(comparison, "evaluation")
    if min(_step(comparison, name) for name in ("parameters", "loss", "coverage")) < step:
        yield "training differs before (see there)"
    elif "differs" in comparison.results["buffers"].reason:
        yield (
            "the buffers differ (see there): DistributedDataParallel sends rank 0's, such as the statistics of "
            "BatchNorm, before every forward pass; broadcast them before evaluating"
        )
    else:
        yield "the model is evaluated with other data, in another precision, or after other weights were loaded into it"


def causes_of_buffers(comparison: Comparison) -> Iterator[str]:
    if "exists on the old side only" in comparison.results["buffers"].reason:
        yield "a buffer became a plain attribute, or is registered under another name"
    elif _is_constant(comparison.old, comparison.results["buffers"].tensor):
        yield CONSTANT
    elif _step(comparison, "loss") <= _step(comparison, "buffers"):
        yield "the forward pass differs (see loss)"
    else:
        yield "buffers are not broadcast from rank 0, cast to another type (buffer_dtype), or left as to_empty() made"


def _is_constant(record: Record, name: str | None) -> bool:
    """Whether a buffer is the same on every rank after each of several steps."""
    found = [t.sketch.checksum for tensors in record.tensors.values() for key, t in tensors.items()
             if key.kind == "buffer" and key.name == name and t.sketch is not None]  # fmt: skip
    return len(found) > 1 and len(set(found)) == 1


def _all_zero(record: Record, kind: str) -> bool:
    sketches = [t.sketch for key, t in record.tensors.get(0, {}).items() if key.kind == kind and t.sketch is not None]
    return bool(sketches) and all(sketch.absmax == 0 for sketch in sketches)


def causes_of_checkpoints(comparison: Comparison) -> Iterator[str]:
    result = comparison.results["checkpoints"]
    if VALUES in result.causes and all(_step(comparison, name) == float("inf") for name in ("parameters", "optimizer")):
        result.causes.remove(VALUES)
        yield "training is the same: another model or a copy was saved (an average, a model before loading), or at another step"


FINDERS = {
    "checkpoints": causes_of_checkpoints,
    "loss": causes_of_loss,
    "gradients": causes_of_gradients,
    "clipping": causes_of_clipping,
    "parameters": causes_of_parameters,
    "optimizer": causes_of_optimizer,
    "buffers": causes_of_buffers,
    "evaluation": causes_of_evaluation,
}
