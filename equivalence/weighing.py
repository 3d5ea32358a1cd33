"""What decides: the results of training. How it got there decides only where its results cannot show it yet."""

from __future__ import annotations

from .comparison import Comparison
from .record import Event, Record

RESULTS = ("coverage", "loss", "parameters", "optimizer", "hyperparameters", "buffers", "scaler", "evaluation")
"""What training produces, beside its files. Files that differ say nothing about how training was done."""
PROCESS = ("gradients", "clipping", "communication", "memory")
"""How it got there: gradients are read at the moment of a call, norms and collectives are computed in many ways."""
SAME = "; the results of training are the same"


def weigh(comparison: Comparison) -> None:
    """Turns a failed check of the process into a warning where all results were compared and are the same.

    Not where the results cannot show the difference: see `CheckResult.conclusive`, and limits that no step reached.
    """
    results = [comparison.results[name] for name in RESULTS if name in comparison.results]
    if any(result.outcome == "fail" for result in results):
        return
    for name in PROCESS:
        result = comparison.results[name]
        if result.outcome == "fail" and not result.conclusive and _shows(comparison, name):
            result.outcome = "warn"
            result.reason += SAME
            result.causes = []


def _shows(comparison: Comparison, name: str) -> bool:
    """Whether the results would be others if this difference had an effect."""
    if name in ("gradients", "clipping") and comparison.results["parameters"].outcome == "not compared":
        return False
    if name != "clipping":
        return True
    if _clips(comparison.old) and _clips(comparison.new):
        return _limit_reached(comparison.old) and _limit_reached(comparison.new)
    return _limit_reached(comparison.old) or _limit_reached(comparison.new)


def _clips(record: Record) -> bool:
    return bool(record.clips)


def _limit_reached(record: Record) -> bool:
    """Whether some step's gradients were reduced, of those after which the parameters were compared."""
    return any(
        _reduces(event) for (step, _), events in record.clips.items() if step in record.tensors for event in events.values()
    )


def _reduces(clip: Event) -> bool:
    return clip["kind"] == "norm" and clip.get("norm") is not None and clip["norm"] > clip["max_norm"]
