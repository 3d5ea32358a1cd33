"""All checks that rest on two records alone."""

from __future__ import annotations

from dataclasses import dataclass, field

from .check_communication import check_communication
from .check_evaluation import check_evaluation
from .check_memory import check_memory
from .check_scalars import check_clipping, check_hyperparameters, check_loss, check_scaler
from .check_tensors import (
    TensorCheck,
    check_buffers,
    check_clipped,
    check_gradients,
    check_optimizer,
    check_parameters,
)
from .check_tripwires import check_tripwires
from .record import Record
from .tolerance import Tolerance
from .verdict import CheckResult


@dataclass
class Comparison:
    """Two records with the results of the checks, by name.

    `differing`: for the checks on tensors, the names that differ at the first step that differs.
    `only_other_ranks`: the buffers that differ do so on other ranks than 0 only.
    """

    old: Record
    new: Record
    tolerance: Tolerance
    results: dict[str, CheckResult] = field(default_factory=dict)
    differing: dict[str, frozenset[str]] = field(default_factory=dict)
    tensors: dict[str, TensorCheck] = field(default_factory=dict)
    only_other_ranks: bool = False

    def fails_up_to(self, name: str, step: int) -> bool:
        """Whether the check failed at this step or before."""
        result = self.results[name]
        return result.outcome == "fail" and (result.step is None or result.step <= step)


def compare(old: Record, new: Record, tolerance: Tolerance) -> Comparison:
    """Runs every check that needs nothing but the records."""
    comparison = Comparison(old, new, tolerance)
    comparison.results["loss"] = check_loss(old, new, tolerance)
    comparison.results["clipping"] = check_clipping(old, new, tolerance)
    comparison.results["hyperparameters"] = check_hyperparameters(old, new)
    comparison.results["scaler"] = check_scaler(old, new)
    comparison.results["communication"] = check_communication(old, new)
    comparison.results["memory"] = check_memory(old, new)
    comparison.results["tripwires"] = check_tripwires(new)
    comparison.results["evaluation"] = check_evaluation(old, new, tolerance)
    for check in (check_gradients, check_parameters, check_optimizer, check_buffers):
        found = check(old, new, tolerance)
        name = found.result.name
        comparison.results[name] = found.result
        comparison.tensors[name] = found
        comparison.differing[name] = found.differing
    comparison.only_other_ranks = comparison.tensors["buffers"].only_other_ranks
    clipped = check_clipped(old, new, tolerance)
    if comparison.results["clipping"].outcome == "pass" and clipped.result.outcome == "fail":
        comparison.results["clipping"] = clipped.result
        comparison.differing["clipping"] = clipped.differing
    return comparison
