"""Sums that fully_shard makes in another order, shown by a run of the old side that makes them in the same order."""

from __future__ import annotations

import json

from .check_communication import SHARDED
from .comparison import Comparison
from .expected import AFFECTED
from .units import units
from .verdict import CheckResult

REASON = (
    "fully_shard's units take their inputs through a node of their own, so that the gradients of a tensor that several "
    "units use (an encoder's output) are added up in another order; an old run with the same nodes agrees with the new one"
)


def environment(comparison: Comparison) -> dict[str, str] | None:
    """What the old side's control run is told; None where the order of sums cannot be what differs."""
    gradients = comparison.results["gradients"]
    if gradients.outcome != "fail" or gradients.step is None or gradients.difference is None:
        return None
    # However large: what is zero but for rounding (a bias before a norm) may differ by as much as it is.
    if comparison.fails_up_to("loss", gradients.step):
        return None
    if not comparison.tolerance.exact or "fsdp2" in comparison.old.layouts() or not comparison.new.layouts() <= SHARDED:
        return None
    paths = [unit["module"] for unit in units(comparison.new) if unit["module"]]
    return {"TO_FSDP2_UNIT_INPUTS": json.dumps(paths)} if len(paths) > 1 else None


def apply(comparison: Comparison, control: Comparison, checkpoints: CheckResult) -> None:
    """Turns into *expected* what differs from the old side and not from its control run."""
    same = {name: result.outcome != "fail" for name, result in control.results.items()}
    same["checkpoints"] = checkpoints.outcome != "fail"
    if not same["gradients"]:
        return
    for name in AFFECTED:
        result = comparison.results[name]
        if result.outcome == "fail" and same[name]:
            result.outcome = "expected"
            result.reason += f": {REASON}" if name == "gradients" else ": follows from gradients"
            result.causes = []
