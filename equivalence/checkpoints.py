"""The check `checkpoints`: what both sides saved, compared from disk by canonical name.

Training numerics see none of the mistakes that are made when saving: a file that holds one rank's shard,
lacks the optimizer or has other keys fails on the day it is loaded. `preserve` is called after each run,
`compare` once.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .checkpoint_differences import Difference, differences
from .checkpoint_files import Format, Shards, UnreadableCheckpoint, read
from .checkpoint_names import Contents, take_apart
from .checkpoint_store import SavedFile, SavedRun, preserve
from .verdict import CheckResult, Outcome

__all__ = ["compare", "compare_paths", "joined", "preserve"]

_WORST_FIRST: tuple[Outcome, ...] = ("fail", "not compared", "expected", "pass")

VALUES = "training differs (see the other checks), or the file was saved at another step"
# The gravest first; results are ordered by it.
_CAUSES = {
    "local shard": "one rank saved the state_dict() of its shards; get_model_state_dict with "
    "full_state_dict=True, called on all ranks, gathers the whole",
    "sharded tensors": "state_dict() of a model under fully_shard holds DTensors; torch.save files need "
    "get_model_state_dict with full_state_dict=True",
    "incomplete shards": "state_dict() of a model under fully_shard holds DTensors, and not every rank's "
    "part was saved",
    "missing buffer": "the state dict was built from parameters alone",
    "missing optimizer": "the optimizer's state is not gathered or not put into the file; if it is empty, "
    "the optimizer was built before fully_shard",
    "optimizer state missing": "the optimizer does not hold these parameters, or no longer after sharding",
    "wrong section": "another model was saved under this name: the trained one in place of its average, or the other way round",
    "dtype": "a mixed-precision copy was saved instead of the parameters themselves",
    "values": VALUES,
    "optimizer values": VALUES,
    "overwritten": "the condition that let one rank save was lost; state that is gathered is whole on rank 0 alone",
    "compiled keys": "the state_dict() of a model that torch.compile wrapped has `_orig_mod.` in its keys, that of the "
    "model inside it, or of one that was compiled in place (model.compile()), has not",
    "key prefix": "DistributedDataParallel's state_dict() has `module.` in front of its keys, that of a "
    "sharded model has not",
    "optimizer keys": "the state dict helpers of Distributed Checkpoint name parameters; loaders of old "
    "files need a conversion",
}


@dataclass
class _Checkpoint:
    """Files that belong together: one file or directory, or one file of each rank."""

    name: str
    files: list[SavedFile]


def compare(old: Path, new: Path, tolerance: float = 0.0) -> list[CheckResult]:
    """Compares what two runs saved; `old` and `new` are the directories that `preserve` filled.

    tolerance: largest relative difference of a tensor that passes; 0 asks for equal bits. Returns at least
    one result; every result has the name `checkpoints`, and there is one for each checkpoint and kind of
    difference.
    """
    run_old, run_new = SavedRun.load(old), SavedRun.load(new)
    if not run_old.files and not run_new.files:
        reason = "neither side saved a checkpoint to a file"
        if run_old.in_memory or run_new.in_memory:
            reason += " (what is saved to memory is not seen)"
        return [CheckResult("checkpoints", "not compared", reason)]
    results: list[CheckResult] = []
    for ours, theirs in _pairs(_grouped(run_old.files), _grouped(run_new.files)):
        if theirs is None:
            assert ours is not None
            results.append(_result("fail", f"the new side did not save {ours.name}"))
        elif ours is None:
            results.append(_result("fail", f"the new side saved {theirs.name}, which the old one did not"))
        else:
            results += _compare_pair(ours, theirs, run_old, run_new, tolerance)
    return sorted(results, key=lambda result: _WORST_FIRST.index(result.outcome))


def compare_paths(old: Path, new: Path, tolerance: float = 0.0) -> list[CheckResult]:
    """Compares two checkpoints given by their paths, without a record: numbered optimizer states stay unnamed."""
    files = [SavedFile(new.name, str(path), str(path), 0, 0) for path in (old, new)]
    pair = [_Checkpoint(new.name, [file]) for file in files]
    return _compare_pair(pair[0], pair[1], SavedRun(), SavedRun(), tolerance)


def joined(results: list[CheckResult]) -> CheckResult:
    """One result out of all: the worst outcome, with the details of its first result and the reasons of
    each. What has no size comes before what does: no rounding explains it."""
    ordered = sorted(results, key=lambda result: (_WORST_FIRST.index(result.outcome), result.difference is not None))
    first = ordered[0]
    shown = [r for r in ordered if r.outcome != "pass"] or ordered
    causes = list(dict.fromkeys(cause for result in ordered for cause in result.causes))
    reason = "; ".join(dict.fromkeys(result.reason for result in shown))
    return CheckResult(first.name, first.outcome, reason, first.step, first.tensor, first.difference, causes)


def _result(outcome: Outcome, reason: str, **details: Any) -> CheckResult:
    return CheckResult("checkpoints", outcome, reason, **details)


def _stem(name: str) -> str:
    """The name without its numbers, which may be steps, ranks or dates."""
    return re.sub(r"\d+", "#", name)


def _grouped(files: list[SavedFile]) -> list[_Checkpoint]:
    """Files that differ in a number only, saved at the same step by different ranks, are one checkpoint."""
    groups: dict[tuple[str, int], list[SavedFile]] = {}
    for file in files:
        groups.setdefault((_stem(file.name), file.step), []).append(file)
    found: list[_Checkpoint] = []
    for members in groups.values():
        if len({file.rank for file in members}) == len(members):
            found.append(_Checkpoint(members[0].name, sorted(members, key=lambda file: file.rank)))
        else:
            found += [_Checkpoint(file.name, [file]) for file in members]
    return sorted(found, key=lambda checkpoint: (checkpoint.files[0].step, checkpoint.name))


def _pairs(old: list[_Checkpoint], new: list[_Checkpoint]) -> Iterator[tuple[_Checkpoint | None, _Checkpoint | None]]:
    """By equal name, then by equal name but for numbers (a date, say), then in the order of saving."""
    old, new = list(old), list(new)
    for key in (lambda c: c.name, lambda c: _stem(c.name), lambda c: ""):
        for ours in list(old):
            theirs = next((candidate for candidate in new if key(candidate) == key(ours)), None)
            if theirs is not None:
                old.remove(ours)
                new.remove(theirs)
                yield ours, theirs
    yield from ((ours, None) for ours in old)
    yield from ((None, theirs) for theirs in new)


def _compare_pair(
    old: _Checkpoint, new: _Checkpoint, run_old: SavedRun, run_new: SavedRun, tolerance: float
) -> list[CheckResult]:
    if all(file.copy is None for file in [*old.files, *new.files]):
        return [
            _result(
                "not compared",
                f"{old.name} is not there any more on either side: removed by the scripts, or saved on another machine",
            )
        ]
    try:
        format_old, contents_old = _contents(old, run_old)
    except UnreadableCheckpoint as error:
        return [_result("not compared", f"old side: {error}")]
    try:
        format_new, contents_new = _contents(new, run_new)
    except UnreadableCheckpoint as error:
        return [_result("fail", f"new side: {error}")]
    found = list(_form(old, new, format_old, format_new))
    for a, b in zip(contents_old, contents_new, strict=False):
        found += differences(a, b, tolerance, run_old.buffers, [*run_old.aliases, *run_new.aliases])
    if format_old != "DCP" and format_new == "DCP":
        found = [_of_new_format(difference) for difference in found]
    step = new.files[0].step
    results = list(_summaries(new.name, step, found))
    if all(result.outcome == "expected" for result in results):
        results.append(_result("pass", _same(old, contents_old, tolerance)))
    return results


def _contents(checkpoint: _Checkpoint, run: SavedRun) -> tuple[Format, list[Contents]]:
    """The contents of each rank's file; shards are first joined over the files of all ranks."""
    form: Format = "torch.save"
    trees: list[Any] = []
    for file in checkpoint.files:
        if file.copy is None:
            raise UnreadableCheckpoint(
                f"{file.name} is not there any more: removed by the script, or saved on another machine"
            )
        form, tree = read(Path(file.copy))
        trees.append(tree)
    _join_shards(trees)
    return form, [take_apart(tree, run.orders) for tree in trees]


def _join_shards(trees: list[Any]) -> None:
    """Lets every rank's `Shards` hold the parts of all ranks, in rank order."""
    first = trees[0]
    if isinstance(first, Shards):
        if all(isinstance(tree, Shards) for tree in trees):
            parts = [part for tree in trees for part in tree.parts]
            for tree in trees:
                tree.parts = parts
    elif isinstance(first, dict):
        for key in first:
            if all(isinstance(tree, dict) and key in tree for tree in trees):
                _join_shards([tree[key] for tree in trees])


def _form(old: _Checkpoint, new: _Checkpoint, format_old: Format, format_new: Format) -> Iterator[Difference]:
    if format_old != format_new:
        outcome: Outcome = "expected" if format_new == "DCP" else "fail"
        yield Difference("format", outcome, f"saved as {format_new} instead of {format_old}: other programs load it")
    if _stem(old.name) != _stem(new.name):
        text = f"saved under another name than {old.name}: programs that look for it do not find it"
        yield Difference("name", "expected" if format_new == "DCP" != format_old else "fail", text)
    if len(old.files) != len(new.files):
        text = f"{len(new.files)} file(s) instead of {len(old.files)}"
        yield Difference("files", "expected" if format_new == "DCP" != format_old else "fail", text)
    others = [side.files[0].others if len(side.files) == 1 else [] for side in (old, new)]
    if others[1] and not others[0]:
        ranks = ", ".join(map(str, [new.files[0].rank, *others[1]]))
        yield Difference("overwritten", "fail", f"ranks {ranks} save to this one file: each overwrites what the others saved")
    steps = [(side.files[0].step, side.files[0].saves) for side in (old, new)]
    if steps[0] != steps[1]:
        (step_old, saves_old), (step_new, saves_new) = steps
        counts = f"{saves_new} times, last at step {step_new}, instead of {saves_old}, at step {step_old}"
        yield Difference("saves", "fail", f"saved {counts}")


def _of_new_format(difference: Difference) -> Difference:
    """In another format, keys and sections are loaded by other code anyway."""
    if difference.kind in ("key prefix", "compiled keys", "section", "tied name"):
        return Difference(difference.kind, "expected", difference.text, difference.tensor, difference.size)
    return difference


def _summaries(name: str, step: int, found: list[Difference]) -> Iterator[CheckResult]:
    kinds: dict[tuple[str, Outcome], list[Difference]] = {}
    for difference in found:
        kinds.setdefault((difference.kind, difference.outcome), []).append(difference)
    gravity = {kind: i for i, kind in enumerate(_CAUSES)}
    for (kind, outcome), members in sorted(kinds.items(), key=lambda item: gravity.get(item[0][0], len(gravity))):
        # Numbers may differ by rounding; of what has another form, or is missing, there is no size.
        sized = kind.removeprefix("optimizer ") in ("values", "value", "hyperparameters")
        worst = max(members, key=lambda member: math.inf if member.size is None else member.size)
        more = f" (and {len(members) - 1} more)" if len(members) > 1 else ""
        cause = _CAUSES.get(kind) or _CAUSES.get(kind.removeprefix("optimizer "))
        yield _result(
            outcome,
            f"{name}: {worst.text}{more}",
            step=step,
            tensor=worst.tensor,
            difference=worst.size if sized else None,
            causes=[cause] if cause else [],
        )


def _same(checkpoint: _Checkpoint, contents: list[Contents], tolerance: float) -> str:
    tensors = sum(len(model.tensors) for model in contents[0].models.values())
    states = sum(len(optimizer.state) for optimizer in contents[0].optimizers.values())
    how = "bit for bit" if tolerance == 0 else f"within {tolerance:.1g}"
    return f"{checkpoint.name}: {tensors} tensors and the optimizer state of {states} parameters agree {how}"
