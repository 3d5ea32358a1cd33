"""The check `resume`: a checkpoint of the old script, given to the new one, continues as it did.

Three more runs show it, with the scripts as they are:

- the old script continues from the old checkpoint (the reference),
- the new script continues from the old checkpoint (what happens on the day of the migration),
- the old script continues from the new checkpoint (rollback). Where the two checkpoints are meant to differ by rounding,
  the new script continues from the new one, too, for the old one to be compared with.

How a script is made to continue is its own affair. Two ways are served: it takes arguments
(`--resume-arguments '--resume {checkpoint} --steps 20'`, added to its command), or it looks into its output
directory by itself. Before each run, the files that were saved are put to the same places, relative to the
side's root, at which the run that wrote them had them, and the receiving side's own are removed, so that no
run can continue from the wrong ones.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from .checkpoint_files import UnreadableCheckpoint, read
from .checkpoint_names import OptimizerState, take_apart
from .checkpoint_store import SavedRun, restore
from .record import Record
from .verdict import CheckResult, Outcome, Run, Side

Start = Callable[[Side, list[str], str], tuple[Run, Record]]
"""Runs the script of a side once more with arguments added, under a name for its record; returns the run
and the directory of its record."""

Compare = Callable[[Record, Record], list[CheckResult]]
"""Compares the records of two runs."""

MIXED = "mixed torch.Tensor and DTensor"
"""What torch says where one meets the other."""

_TRAINING = (
    "coverage",
    "loss",
    "gradients",
    "clipping",
    "parameters",
    "optimizer",
    "hyperparameters",
    "buffers",
    "evaluation",
    "scaler",
)


@dataclass
class Resumption:
    """What both sides need to be continued: where they lie, and what their first runs saved (`preserve`)."""

    tops: dict[Side, Path]
    kept: dict[Side, Path]
    arguments: str


def check(resumption: Resumption, start: Start, compare: Compare, rounded: bool = False) -> CheckResult:
    """Continues both scripts from each other's checkpoints and compares how training goes on.

    Passes if the new script, from the old checkpoint, trains as the old script does. Rollback is reported
    beside it: an old script that refuses a new file is *expected* (the optimizer's keys have changed), one
    that takes it and trains otherwise is a failure. Not compared: no checkpoint to continue from, no
    arguments that make the script load it, or no step after loading. `rounded`: the checkpoints of the two
    sides differ, as is expected of them.
    """
    saved: dict[Side, SavedRun] = {side: SavedRun.load(path) for side, path in resumption.kept.items()}
    if saved["old"].last() is None:
        return _result("not compared", "the old run left no checkpoint to continue from")
    reference = _continue("old", "old", resumption, saved, start)
    if reference.problem:
        return _result("not compared", f"the old script could not be continued: {reference.problem}")
    forward = _continue("new", "old", resumption, saved, start)
    if forward.problem:
        return _failure(
            f"the new script does not continue from the old checkpoint: {forward.problem}", saved["old"], forward.problem
        )
    different = _different(compare(reference.record, forward.record))
    if different:
        first = different[0]
        result = _failure(
            f"continued from the old checkpoint, the new script differs in {first.name}", saved["old"]
        )
        result.reason += f": {first.reason}"
        result.step, result.tensor, result.difference = first.step, first.tensor, first.difference
        return result
    steps = forward.run.steps
    return _rollback(resumption, saved, reference, steps, start, compare, rounded)


def _rollback(
    resumption: Resumption,
    saved: dict[Side, SavedRun],
    reference: _Continued,
    steps: int,
    start: Start,
    compare: Compare,
    rounded: bool,
) -> CheckResult:
    good = f"the new script continues from the old checkpoint as the old one does ({steps} steps)"
    if saved["new"].last() is None:
        return _result("fail", f"{good}; rollback: the new run left no checkpoint")
    back = _continue("old", "new", resumption, saved, start)
    if back.problem:
        reason = f"{good}; rollback: the old script does not take the new checkpoint ({back.problem})"
        return _result(
            "expected", reason, ["the state dict helpers of Distributed Checkpoint name parameters"]
        )
    different = _different(compare(reference.record, back.record))
    if different and rounded:
        own = _continue("new", "new", resumption, saved, start)
        if not own.problem and not _different(compare(back.record, own.record)):
            return _result("expected", f"{good}; the old script from the new checkpoint as the new one does")
    if different:
        first = different[0]
        reason = (
            f"{good}; rollback: the old script takes the new checkpoint, and then differs in {first.name}"
        )
        return CheckResult(
            "resume",
            "fail",
            f"{reason}: {first.reason}",
            first.step,
            first.tensor,
            first.difference,
            first.causes,
        )
    return _result("pass", f"{good}, and the old script from the new checkpoint")


@dataclass
class _Continued:
    """One resumed run. `problem` says why it shows nothing, None if it does."""

    run: Run
    record: Record
    problem: str | None


def _continue(
    side: Side, origin: Side, resumption: Resumption, saved: dict[Side, SavedRun], start: Start
) -> _Continued:
    """Runs the script of `side` from what the run of `origin` saved."""
    other = saved[side] if side != origin else None
    checkpoint = restore(saved[origin], resumption.tops[side], instead_of=other)
    assert checkpoint is not None
    given = [part.replace("{checkpoint}", str(checkpoint)) for part in shlex.split(resumption.arguments)]
    run, record = start(side, given, f"{side}-from-{origin}")
    return _Continued(run, record, _problem(run, record, bool(given)))


def _problem(run: Run, record: Record, given: bool) -> str | None:
    if run.failure is not None:
        return run.failure
    if not any(event["action"] == "load" for events in record.checkpoints.values() for event in events):
        how = "with these arguments" if given else "started again without arguments (see --resume-arguments)"
        return f"{how} it loaded no checkpoint"
    if run.steps == 0:
        return "after loading it made no step; let the arguments raise the number of steps"
    return None


def _different(results: list[CheckResult]) -> list[CheckResult]:
    return [result for result in results if result.outcome == "fail" and result.name in _TRAINING]


def _failure(reason: str, old: SavedRun, problem: str = "") -> CheckResult:
    if MIXED in problem:
        cause = "whole tensors of the old file meet sharded parameters: cut them as the parameters are (distribute_tensor)"
        return _result("fail", reason, [cause])
    causes = ["not all of the state is brought back: optimizer, scheduler, scaler, position in the data"]
    if _has_shared_steps(old):
        causes.insert(
            0,
            "in the old file all parameters share one `step` tensor (FSDP1 with flat parameters); loaded "
            "as it is, every step counts many times: clone the tensors of the optimizer state before loading",
        )
    if _has_numbers(old):
        causes.insert(0, "the old file numbers the optimizer's parameters; fully_shard's loaders need names")
    return _result("fail", reason, causes)


def _has_shared_steps(run: SavedRun) -> bool:
    """Whether several parameters' `step` in a torch.save file is one and the same memory."""
    places = [
        state["step"].data_ptr()
        for optimizer in _optimizers(run)
        for state in optimizer.state.values()
        if hasattr(state.get("step"), "data_ptr")
    ]
    return len(set(places)) < len(places)


def _has_numbers(run: SavedRun) -> bool:
    return any(optimizer.by_number for optimizer in _optimizers(run))


def _optimizers(run: SavedRun) -> Iterator[OptimizerState]:
    for file in run.files:
        if file.copy is None:
            continue
        try:
            _, tree = read(Path(file.copy))
        except UnreadableCheckpoint:
            continue
        yield from take_apart(tree, run.orders).optimizers.values()


def _result(outcome: Outcome, reason: str, causes: list[str] | None = None) -> CheckResult:
    return CheckResult("resume", outcome, reason, causes=causes or [])
