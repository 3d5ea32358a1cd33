"""Runs the two sides of a corpus case as real processes and compares what they print and write."""

from __future__ import annotations

import multiprocessing
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Any

import torch
from script_process import execute_script
from to_fsdp2.corpus.cases import Case, Run
from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, Std
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

ATTEMPTS = 3
# On a busy machine gloo at times fails to connect its ranks, or waits for ever. A program that always hangs still fails.
GLOO_UNDER_LOAD = ("connectFullMesh failed", "SIGALRM")
ALONE = Path(__file__).with_name("script_process.py")
FORKS = multiprocessing.get_context("forkserver")
# The optimizers import torch._dynamo on their first step; it takes longer than a whole case.
FORKS.set_forkserver_preload(
    ["torch.distributed.fsdp", "torch.distributed.checkpoint.state_dict", "torch._dynamo"]
)
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
    saved = folder.with_name(f"{folder.name}-saved")
    shutil.copytree(folder, saved)
    failure, logs = "", folder
    for attempt in range(ATTEMPTS):
        logs = Path(tempfile.mkdtemp(dir=folder.parent))
        launch = (_torchrun_alone if attempt else _torchrun) if run.launcher == "torchrun" else _python
        failure = launch(run, args, folder, logs)
        # A program that resumes by itself has to find the files again that it started from.
        if not any(symptom in failure for symptom in GLOO_UNDER_LOAD):
            break
        shutil.rmtree(folder)
        shutil.copytree(saved, folder)
    shutil.rmtree(saved)
    assert not failure, f"{run.script} {' '.join(args)} in {folder}:\n{failure[-6000:]}"
    return "".join(path.read_text() for path in sorted(logs.rglob("stdout.log")))


def _torchrun(run: Run, args: tuple[str, ...], folder: Path, logs: Path) -> str:
    """Runs a script on `nproc` ranks as torchrun does; returns what went wrong, with the ranks' stderr.

    The elastic agent is torchrun's own; its workers are forked from a server that has imported torch, which
    makes a launch about ten times cheaper.
    """
    config = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=run.nproc,
        max_restarts=0,
        run_id=logs.name,
        rdzv_backend="c10d",
        rdzv_endpoint="localhost:0",
        start_method="forkserver",
        monitor_interval=0.05,
        logs_specs=DefaultLogsSpecs(log_dir=str(logs), redirects=Std.ALL),
    )
    try:
        elastic_launch(config, execute_script)(str(folder), run.script, args)
    except ChildFailedError as error:
        return f"{error}\n" + "\n".join(path.read_text() for path in sorted(logs.rglob("stderr.log")))
    return ""


def _torchrun_alone(run: Run, args: tuple[str, ...], folder: Path, logs: Path) -> str:
    """The same through the torchrun command, in processes that nothing was forked into: slower, and never seen to hang."""
    command = [
        sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={run.nproc}",
        f"--log-dir={logs}", "--redirects=3", str(ALONE), str(folder), run.script, *args,
    ]  # fmt: skip
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "SCRIPT_SECONDS": "100", "PYTHONDONTWRITEBYTECODE": "1"}
    ended = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    errors = "\n".join(path.read_text() for path in sorted(logs.rglob("stderr.log")))
    return "" if ended.returncode == 0 else f"{ended.stderr}\n{errors}"


def _python(run: Run, args: tuple[str, ...], folder: Path, logs: Path) -> str:
    """Runs a script in one process, without what torchrun sets; returns what went wrong."""
    process = FORKS.Process(target=_redirected, args=(str(logs), str(folder), run.script, args))
    process.start()
    process.join()
    return "" if process.exitcode == 0 else (logs / "stderr.log").read_text() or f"exit code {process.exitcode}"


def _redirected(logs: str, folder: str, script: str, args: tuple[str, ...]) -> None:
    for descriptor, name in ((1, "stdout.log"), (2, "stderr.log")):
        os.dup2(os.open(os.path.join(logs, name), os.O_WRONLY | os.O_CREAT), descriptor)
    execute_script(folder, script, args)


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
    """Largest difference between two files of tensors, which must have the same keys, shapes and types.

    A parameter without dimensions may have got one of size 1.
    """
    old, new = (dict(_tensors(torch.load(path, weights_only=False))) for path in (before, after))
    assert old and set(old) == set(new), f"{before.name}: keys differ: {sorted(set(old) ^ set(new))}"
    worst = 0.0
    for name, tensor in old.items():
        other = new[name]
        assert type(other) is type(tensor), f"{name} is {type(tensor)} and {type(other)}"
        if tensor.shape == () and other.shape == (1,):
            tensor = tensor.reshape(1)
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
