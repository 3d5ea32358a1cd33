"""Runs the two sides of a corpus case as real processes and compares what they print and write."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Any

import torch
from to_fsdp2.corpus.cases import Case, Run

TIMEOUT_SECONDS = 180
ATTEMPTS = 3
NUMBER = re.compile(r"-?(?:\d+\.\d+(?:e[-+]?\d+)?|\d+e[-+]?\d+|\binf\b|\bnan\b)")


@dataclass(frozen=True)
class Outcome:
    """What one side printed, per invocation, and the folder it ran in."""

    printed: tuple[str, ...]
    folder: Path


def run_side(run: Run, source: Path, folder: Path, *, start: int = 0) -> Outcome:
    """Copies `source` into `folder` and executes the run's invocations from the `start`-th on there.

    Raises AssertionError with the process's last output when an invocation fails.
    """
    shutil.copytree(source, folder, dirs_exist_ok=True)
    printed = tuple(_execute(run, args, folder) for args in run.args[start:])
    return Outcome(printed, folder)


def _execute(run: Run, args: tuple[str, ...], folder: Path) -> str:
    command = [sys.executable]
    if run.launcher == "torchrun":
        command += ["-m", "torch.distributed.run", "--standalone", f"--nproc_per_node={run.nproc}"]
    command += [run.script, *args]
    environment = {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "PYTHONDONTWRITEBYTECODE": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "HF_HUB_OFFLINE": "1",
    }
    saved = folder.with_name(f"{folder.name}-saved")
    shutil.copytree(folder, saved)
    for _ in range(ATTEMPTS):
        done = subprocess.run(
            command, cwd=folder, env=environment, capture_output=True, text=True, timeout=TIMEOUT_SECONDS
        )
        # gloo's threads sometimes abort the process at exit under load, after all work is done; a program
        # that resumes by itself has to find the files again that it started from.
        if done.returncode == 0 or "terminate called without an active exception" not in done.stderr:
            break
        shutil.rmtree(folder)
        shutil.copytree(saved, folder)
    shutil.rmtree(saved)
    assert done.returncode == 0, f"{' '.join(command)} in {folder}:\n{done.stdout}\n{done.stderr[-6000:]}"
    return done.stdout


def compare_printed(before: str, after: str, tolerance: float) -> float:
    """Largest difference between the decimal numbers of two outputs.

    Raises AssertionError when anything else than decimal numbers differs, when a difference exceeds
    the tolerance, or when there is no line with a loss.
    """
    worst = 0.0
    losses = 0
    for line_before, line_after in zip_longest(before.splitlines(), after.splitlines(), fillvalue=""):
        assert NUMBER.sub("#", line_before) == NUMBER.sub("#", line_after), (line_before, line_after)
        for one, other in zip(NUMBER.findall(line_before), NUMBER.findall(line_after), strict=True):
            difference = abs(float(one) - float(other)) if one != other else 0.0
            assert difference <= tolerance, f"{line_before!r} and {line_after!r} differ by {difference}"
            worst = max(worst, difference)
            losses += "loss" in line_before
    assert losses > 0, "no line with a loss was printed"
    return worst


def compare_parameters(before: Path, after: Path, tolerance: float) -> float:
    """Largest difference between two files of tensors, which must have the same keys, shapes and types."""
    old, new = (dict(_tensors(torch.load(path, weights_only=False))) for path in (before, after))
    assert old and set(old) == set(new), f"{before.name}: keys differ: {sorted(set(old) ^ set(new))}"
    worst = 0.0
    for name, tensor in old.items():
        other = new[name]
        assert type(other) is type(tensor), f"{name} is {type(tensor)} and {type(other)}"
        assert (other.shape, other.dtype) == (tensor.shape, tensor.dtype), f"{name} differs in shape or type"
        difference = (tensor.double() - other.double()).abs().max().item() if tensor.numel() else 0.0
        assert difference <= tolerance, f"{name} differs by {difference}"
        worst = max(worst, difference)
    return worst


def _tensors(value: Any, prefix: str = "") -> Iterator[tuple[str, torch.Tensor]]:
    if isinstance(value, torch.Tensor):
        yield prefix, value
    elif isinstance(value, dict):
        for key, item in value.items():
            # Optimizer states are keyed by position before and by name after the migration.
            if key not in ("optimizer", "optim"):
                yield from _tensors(item, f"{prefix}{key}/")


def check_case(case: Case, run: Run, folder: Path) -> tuple[float, float]:
    """Runs both sides and compares them; returns the largest difference of losses and of parameters."""
    before = run_side(run, case.before, folder / "before")
    after = run_side(run, case.after, folder / "after")
    worst = _compare(case, run, before, after)
    if run.cross_resume:
        # What the first invocation of the old program left is what the new one has to continue from.
        run_side(Run(**{**vars(run), "args": run.args[:1]}), case.before, folder / "resumed")
        resumed = run_side(run, case.after, folder / "resumed", start=1)
        continued = Outcome(before.printed[1:], before.folder)
        worst = tuple(max(pair) for pair in zip(worst, _compare(case, run, continued, resumed), strict=True))
    return worst[0], worst[1]


def _compare(case: Case, run: Run, before: Outcome, after: Outcome) -> tuple[float, float]:
    losses = max(
        compare_printed(old, new, case.compare.losses)
        for old, new in zip(before.printed, after.printed, strict=True)
    )
    for name in run.files:
        assert (before.folder / name).exists(), f"before did not write {name}"
        assert (after.folder / name).exists(), f"after did not write {name}"
    parameters = [
        compare_parameters(before.folder / name, after.folder / name, case.compare.parameters)
        for name in run.parameters
    ]
    return losses, max(parameters, default=0.0)
