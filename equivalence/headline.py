"""Which failed check tells most: the one that explains the others, with its likeliest cause and its place."""

from __future__ import annotations

import math

from .causes import CONSTANT
from .verdict import CheckResult

ORDER = (
    "coverage", "scaler", "hyperparameters", "communication", "loss", "gradients", "clipping", "optimizer", "parameters",
    "buffers", "evaluation", "checkpoints", "resume", "memory", "tripwires",
)  # fmt: skip
"""Of checks that fail at the same step, the cause first."""
SLIGHT = 0.05
"""A relative difference of gradients that precision, or the number of reductions, can make."""


def headline(results: list[CheckResult]) -> CheckResult:
    """The failed check that the verdict begins with; `results` holds at least one that failed."""
    failed = [result for result in results if result.outcome == "fail"]
    others = {result.name: result for result in failed}
    return min(failed, key=lambda result: _key(result, others))


def sentence(results: list[CheckResult]) -> str:
    """What is different, why, where, and which other checks failed."""
    first = headline(results)
    text = f"{first.name}: {first.reason}"
    if first.causes:
        text += f"; likely: {first.causes[0]}"
    if first.places and first.places[0] not in text:
        text += f"; at {first.places[0]}"
    others = [result.name for result in results if result.outcome == "fail" and result is not first]
    return text + (f" (also: {', '.join(others)})" if others else "")


def _key(result: CheckResult, others: dict[str, CheckResult]) -> tuple[float, float]:
    order = float(ORDER.index(result.name)) if result.name in ORDER else float(len(ORDER))
    step = float(result.step) if result.step is not None else (-1.0 if result.name == "coverage" else math.inf)
    if result.name == "parameters" and result.reason.startswith("before the first step"):
        return step, 0.5
    if result.name == "buffers" and CONSTANT in result.causes:
        return step, 0.6  # no consequence of anything else
    if result.name == "tripwires":
        return step, 0.7
    if result.name == "communication":
        # The first step has the set-up in it and is not compared: what shows at step 1 was there before.
        step = 0.0 if step == 1 else step
        gradients = others.get("gradients")
        if gradients is not None and (gradients.difference is None or gradients.difference > SLIGHT):
            order = len(ORDER)
        if not result.conclusive and result.difference is not None:
            step = math.inf  # other numbers of calls or bytes change no result
    return step, order
