"""What `benchmarks/ecosystem.py` says of a made-up repository, run as a command."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "ecosystem.py"
PROGRAM = """
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


def main():
    dist.init_process_group("gloo")
    model = DDP(nn.Linear(4, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(2):
        model(torch.randn(2, 4)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()


if __name__ == "__main__":
    main()
"""
SPELLINGS = """
import functools
import torch.distributed.fsdp as fsdp
from apex.parallel import DistributedDataParallel
from torch import nn
from torch.nn.parallel import DistributedDataParallel as Torch


class Named(Torch):
    pass


def wraps(model: Torch, registry):
    fsdp.FullyShardedDataParallel(model)
    functools.partial(nn.parallel.DistributedDataParallel, bucket_cap_mb=1)
    (Torch if registry else list)(model)
    registry.register(module=Torch)


def others(model) -> Torch:
    same: Torch = DistributedDataParallel(model)
    if isinstance(model, Torch) or type(model) in (Torch, nn.DataParallel):
        return fsdp.FullyShardedDataParallel.fsdp_modules(same)
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with one clone, and the list that names it beside the folder."""
    clone = tmp_path / "clones" / "example"
    clone.mkdir(parents=True)
    (clone / "train.py").write_text(PROGRAM)
    _commit(clone)
    return clone.parent


def _commit(clone: Path) -> None:
    identity = ["-c", "user.name=a", "-c", "user.email=a@example.org"]
    for arguments in (["init", "-q"], ["add", "-A"], [*identity, "commit", "-q", "-m", "start"]):
        subprocess.run(["git", *arguments], cwd=clone, check=True)
    head = subprocess.run(["git", "rev-parse", "HEAD"], cwd=clone, check=True, capture_output=True, text=True).stdout
    (clone.parents[1] / "list.tsv").write_text(f"somebody/example\t{head}")


def run(folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(SCRIPT), str(folder), "--list", str(folder.parent / "list.tsv"), *options]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def outcome(folder: Path) -> dict[str, Any]:
    file = folder.parent / "all.json"
    run(folder, "--json", str(file))
    [only] = json.loads(file.read_text())
    return only


def test_a_plain_script_comes_out_whole(folder: Path) -> None:
    figures = outcome(folder)["figures"]
    assert (figures["wraps"], figures["left"], figures["files"]) == (1, 0, 1)
    assert figures["added"] > 0
    assert figures["safe"] + figures["review"] > 0
    assert {figures[name] for name in ("broken", "undefined", "unused", "failed", "again")} == {0}
    assert "DDP" in (folder / "example" / "train.py").read_text(), "the clone stays as it is"


def test_wraps_are_counted_in_any_spelling(folder: Path) -> None:
    (folder / "example" / "spellings.py").write_text(SPELLINGS)
    (folder / "example" / "test_training.py").write_text(PROGRAM)
    _commit(folder / "example")
    assert outcome(folder)["figures"]["wraps"] == 1 + 5


def test_check_says_what_differs_from_the_summary(folder: Path) -> None:
    for option in ("--update", "--check"):
        done = run(folder, option)
        assert done.returncode == 0, done.stdout
    summary = folder.parent / "list.json"
    kept = json.loads(summary.read_text())
    kept["somebody/example"]["left"] = 7
    summary.write_text(json.dumps(kept))
    done = run(folder, "--check")
    assert done.returncode == 1
    assert done.stdout.splitlines()[-1] == "somebody/example: left 7 → 0"


def test_a_clone_at_another_commit_is_not_measured(folder: Path) -> None:
    before = (folder.parent / "list.tsv").read_text()
    (folder / "example" / "train.py").write_text("")
    _commit(folder / "example")
    (folder.parent / "list.tsv").write_text(before)
    done = run(folder)
    assert done.returncode == 1
    assert "not at" in done.stdout
