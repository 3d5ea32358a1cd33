"""Variants are run on forked ranks as torchrun runs them, and judged by what they do."""

from __future__ import annotations

import os
import socket
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest
import torch

from benchmarks.metamorphic.folder_cases import folder_cases
from benchmarks.metamorphic.kinds import KINDS
from benchmarks.metamorphic.launch import Outcome, Ranks
from benchmarks.metamorphic.programs import Program, Run
from benchmarks.metamorphic.project import Changes, Place, Project
from benchmarks.metamorphic.report import as_json, as_text
from benchmarks.metamorphic.runner import Result, Runner, Task, tasks

pytestmark = pytest.mark.slow

# Lines of ranks that share a pipe must not mix, whether Python buffers or not.
SAY = """
def say(line):
    print(line + chr(10), end="", flush=True)
"""

DDP = SAY + """
import argparse
import gc
import os
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel


def main():
    dist.init_process_group("gloo")
    rank = int(os.environ["RANK"])
    torch.manual_seed(0)
    layers = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Dropout(0.2), torch.nn.Linear(16, 1))
    model = DistributedDataParallel(layers)
    torch.manual_seed(rank)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-1)
    for step in range(4):
        loss = model(torch.randn(4, 8)).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        say(f"step {step} loss {loss.item()!r}" if rank == 0 else f"rank {rank} {loss.item()!r}")
    if rank == 0:
        torch.save(layers.state_dict(), os.path.join(os.environ["OUT"], "model.pt"))


main()
gc.collect()  # a model in DDP that outlives its group aborts now and then, as does a rank that the other still reads from
dist.barrier()
dist.destroy_process_group()
"""

SPAWN = SAY + """
import os
import torch
import torch.distributed as dist
import torch.multiprocessing as mp

say(f"imported as {__name__}")


def worker(rank, world, scale):
    dist.init_process_group("gloo", rank=rank, world_size=world)
    say(f"seed of the parent: {torch.initial_seed() == 4}")
    torch.manual_seed(rank)
    drawn = torch.rand(1) * scale
    dist.all_reduce(drawn)
    if rank == 0:
        say(f"drawn {drawn.item()!r}")
    dist.barrier()  # a rank that ends while the other still reads from it aborts now and then
    dist.destroy_process_group()


if __name__ == "__main__":
    torch.manual_seed(4)
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="50000")
    mp.spawn(worker, args=(2, 3.0), nprocs=2)
"""


@pytest.fixture(scope="module")
def ranks() -> Iterator[Ranks]:
    with Ranks() as server:
        yield server


def run_script(ranks: Ranks, folder: Path, text: str, launcher: str = "torchrun", seconds: float = 60.0) -> Outcome:
    (folder / "source").mkdir()
    (folder / "source" / "train.py").write_text(text)
    (folder / "work").mkdir()
    run = Run("run", launcher, 2, "train.py", ((),))  # pyright: ignore[reportArgumentType]
    return ranks.run(run, folder / "source", folder / "work", seconds)


def test_a_run_is_bitwise_that_of_torchrun(ranks: Ranks, tmp_path: Path) -> None:
    forked = run_script(ranks, tmp_path, DDP)
    assert not forked.failure
    assert forked.constructed == {"DistributedDataParallel"}
    (tmp_path / "out").mkdir()
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "source/train.py"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "OUT": str(tmp_path / "out")}
    launched = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=True, timeout=120)
    assert sorted(forked.printed[0].splitlines()) == sorted(launched.stdout.splitlines())
    one, other = (torch.load(folder / "model.pt") for folder in (forked.out, tmp_path / "out"))
    assert all(torch.equal(one[name], other[name]) for name in one)


def spawning() -> str:
    """The program with a port of its own: one that another run has just left may still be held."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return SPAWN.replace("50000", str(probe.getsockname()[1]))


def test_spawned_processes_begin_anew(ranks: Ranks, tmp_path: Path) -> None:
    forked = run_script(ranks, tmp_path, spawning(), launcher="python")
    assert not forked.failure
    (tmp_path / "spawning.py").write_text(spawning())
    spawned = subprocess.run([sys.executable, "spawning.py"], cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert spawned.returncode == 0, spawned.stderr
    assert sorted(forked.printed[0].splitlines()) == sorted(spawned.stdout.splitlines())
    assert "imported as __mp_main__" in forked.printed[0]


def test_a_rank_that_fails_ends_the_others(ranks: Ranks, tmp_path: Path) -> None:
    text = "import os, time\nif os.environ['RANK'] == '1':\n    raise ValueError('no')\ntime.sleep(50)\n"
    outcome = run_script(ranks, tmp_path, text)
    assert outcome.failure.startswith("exit codes [-9, 1]")
    assert "ValueError: no" in outcome.failure


@pytest.mark.parametrize(("waiting", "seconds"), [("while True:\n    pass\n", 3.0), ("time.sleep(90)\n", 300.0)])
def test_a_program_that_hangs_is_ended(ranks: Ranks, tmp_path: Path, waiting: str, seconds: float) -> None:
    outcome = run_script(ranks, tmp_path, f"import time\nprint('begun', flush=True)\n{waiting}", seconds=seconds)
    assert outcome.seconds < 60
    assert outcome.failure.startswith("ran for")
    assert outcome.printed == ("begun\nbegun\n",)


def task(folder: Path, length: int = 0) -> Task:
    """The program as a case, with FSDP2 in its version by hand."""
    case = folder / "cases" / "regression"
    by_hand = DDP.replace("torch.nn.parallel", "torch.distributed.fsdp").replace("DistributedDataParallel", "fully_shard")
    whole = "    whole = {name: value.full_tensor() for name, value in layers.state_dict().items()}\n"
    by_hand = by_hand.replace("    if rank == 0:", f"{whole}    if rank == 0:").replace("layers.state_dict(),", "whole,")
    for name, text in (("old", DDP), ("reference", by_hand)):
        (case / name).mkdir(parents=True, exist_ok=True)
        (case / name / "train.py").write_text(text)
    (case / "case.toml").write_text('entry = "train.py"\n[[run]]\nname = "two"\nnproc = 2\ntol_loss = 1e-6\ntol_ckpt = 1e-6\n')
    program = folder_cases(folder / "cases")[0]
    return Task(0, program, program.runs[0], "seed", length)


def tool(folder: Path, edit: str, levels: tuple[str, ...] = ()) -> Path:
    """A command that edits the `train.py` of its last argument, and reports findings of these levels."""
    findings = [{"rule": "FS100", "level": level, "message": "a person has to look"} for level in levels]
    text = (
        f"#!{sys.executable}\nimport json, pathlib, sys\n"
        f"path = pathlib.Path(sys.argv[-1]) / 'train.py'\ntext = path.read_text()\n"
        f"path.write_text({edit})\nprint(json.dumps({{'findings': {findings!r}}}))\n"
    )
    path = folder / "tool"
    path.write_text(text)
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


def judged(ranks: Ranks, folder: Path, edit: str, levels: tuple[str, ...] = (), length: int = 0) -> Result:
    return Runner(tool(folder, edit, levels), folder / "cache", list(KINDS), None).judge(ranks, task(folder, length))


def test_verdicts(ranks: Ranks, tmp_path: Path) -> None:
    migrated = (task(tmp_path).program.by_hand / "train.py").read_text()
    wrong = "text.replace('loss.backward()', '(2 * loss).backward()')"
    assert judged(ranks, tmp_path, repr(migrated)).verdict == "equal"
    assert judged(ranks, tmp_path, "text", length=3).verdict == "unmoved"
    assert judged(ranks, tmp_path, wrong).verdict == "different"
    assert judged(ranks, tmp_path, wrong, ("manual",)).verdict == "stopped"
    assert judged(ranks, tmp_path, "'raise ValueError'", ("safe",)).verdict == "different"
    result = judged(ranks, tmp_path, repr(migrated), ("manual",))
    assert (result.verdict, result.manual) == ("equal", ["FS100 a person has to look"])


def test_a_refactoring_that_changes_the_program_is_invalid(
    ranks: Ranks, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def halve(project: Project, rng: Random) -> Changes:
        if (yield Place("train.py", "")):
            text = project.files["train.py"].replace("loss.backward()", "(loss / 2).backward()")
            return project.changed({"train.py": text})
        return None

    monkeypatch.setitem(KINDS, "rename_local", halve)
    runner = Runner(tool(tmp_path, "text"), tmp_path / "cache", ["rename_local"], tmp_path / "kept")
    result = runner.judge(ranks, task(tmp_path, 1))
    assert result.verdict == "invalid"
    assert (tmp_path / "kept" / "0000_regression_invalid" / "variant" / "train.py").exists()


def test_the_report_counts(tmp_path: Path) -> None:
    program = task(tmp_path).program
    wanted = list(tasks([program], seed=3, count=2, longest=2))
    results = [Result(one.number, program.name, one.run.name, []) for one in wanted]
    results[1].verdict, results[1].manual = "stopped", ["FS100 look"]
    results[1].reason = "exit codes [1, 1]\nValueError: stop"
    originals = [Result(-1, program.name, wanted[0].run.name, [])]
    figures = as_json(results, originals, {"seed": 3})
    counts = figures["variants"]
    assert (counts["equal"], counts["stopped"], counts["with manual findings"]) == (1, 1, 1)
    assert "exit codes [1, 1] … ValueError: stop" in as_text(results, originals, {"seed": 3})


CASE = """
entry = "train.py"
optim_id_names = ["weight", "bias"]
[[run]]
name = "two"
nproc = 2
stages = [["--steps", "2"], ["--resume"]]
tol_loss = 1e-3
tol_ckpt = 1e-3
"""


def outcome(folder: Path, loss: float, weight: float, named: bool) -> Outcome:
    """What a program printed and saved, its optimizer's state by name or by number."""
    keys = ["weight", "bias"] if named else [0, 1]
    state = {key: {"exp_avg": torch.full((2,), float(number))} for number, key in enumerate(keys)}
    saved = {
        "model": {"weight" if named else "module.weight": torch.full((2,), weight)},
        "optimizer": {"state": state, "param_groups": [{"lr": 0.1, "params": keys}]},
        "epoch": 3,
    }
    folder.mkdir()
    torch.save(saved, folder / "last.pt")
    return Outcome((f"step 0 loss {loss} grad_norm 1.0\nmetric accuracy 0.5\n",), folder, folder, "", frozenset(), 1.0)


@pytest.mark.parametrize(
    ("loss", "weight", "exact", "expected"),
    [
        (1.0, 2.0, True, ""),
        (1.0005, 2.0005, False, ""),
        (1.0005, 2.0, True, "loss 0 0 is 1.0005, not 1.0"),
        (1.0, 2.0005, True, "last/model/model/weight differs by 0.0005"),
        (1.0, 2.5, False, "last/model/model/weight differs by 0.5"),
    ],
)
def test_cases_in_folders_are_compared(tmp_path: Path, loss: float, weight: float, exact: bool, expected: str) -> None:
    (tmp_path / "cases" / "one" / "old").mkdir(parents=True)
    (tmp_path / "cases" / "one" / "case.toml").write_text(CASE)
    program: Program = folder_cases(tmp_path / "cases")[0]
    run = program.runs[0]
    assert (run.nproc, run.script, run.stages) == (2, "train.py", (("--steps", "2"), ("--resume",)))
    old, new = outcome(tmp_path / "a", 1.0, 2.0, named=False), outcome(tmp_path / "b", loss, weight, named=True)
    assert program.compare(run, old, new, exact) == expected
