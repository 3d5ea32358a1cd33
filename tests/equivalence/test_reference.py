"""The old side's run is made once and kept: later runs of `verify` take it from there, and come to the same verdict."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
from to_fsdp2.equivalence.command import verify
from to_fsdp2.equivalence.options import UsageError, VerifyOptions

pytestmark = pytest.mark.slow

SCRIPT = """\
import os, sys
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

open(os.path.join(sys.argv[1], f"ran-{os.getpid()}"), "w").close()
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
torch.manual_seed(0)
model = DistributedDataParallel(torch.nn.Linear(4, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(2):
    loss = model(torch.ones(2, 4) * (dist.get_rank() + 1)).square().sum()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
if dist.get_rank() == 0:
    torch.save(model.module.state_dict(), "weights.pt")
dist.destroy_process_group()
"""


def git(folder: Path, *arguments: str) -> None:
    identity = ["-c", "user.name=a", "-c", "user.email=a@example.org"]
    subprocess.run(["git", *identity, *arguments], cwd=folder, check=True, capture_output=True)


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "repository"
    folder.mkdir()
    (folder / "train.py").write_text(SCRIPT)
    git(folder, "init", "-q")
    git(folder, "add", "-A")
    git(folder, "commit", "-q", "-m", "old")
    monkeypatch.chdir(folder)
    return folder


def test_a_reference_stands_for_the_old_run(repository: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    kept, ran, report = tmp_path / "reference", tmp_path / "ran", tmp_path / "report"
    ran.mkdir()
    command = ["train.py", str(ran)]
    assert verify(VerifyOptions(command=command, launcher="python", device="cpu", save_reference=kept)) == 0
    assert "2 steps on 1 ranks" in capsys.readouterr().out
    assert len(list(ran.iterdir())) == 1

    renamed = SCRIPT.replace("loss.backward()", "(loss * 1.0).backward()")
    (repository / "train.py").write_text(renamed)
    assert verify(VerifyOptions(command=command, launcher="python", device="cpu", reference=kept, report=report)) == 0
    assert len(list(ran.iterdir())) == 2
    verdict = json.loads((report / "report.json").read_text())
    outcomes = {check["name"]: check["outcome"] for check in verdict["checks"]}
    assert outcomes["parameters"] == outcomes["checkpoints"] == "pass"
    assert "2 of 2 changed statements" in verdict["checks"][0]["reason"]
    assert "from the reference" in capsys.readouterr().err

    (repository / "train.py").write_text(SCRIPT.replace("lr=0.1", "lr=0.2"))
    assert verify(VerifyOptions(command=command, launcher="python", device="cpu", reference=kept)) == 1

    for options in ({"command": [*command, "more"]}, {"command": command, "nproc": 4}, {"command": command, "old": "."}):
        with pytest.raises(UsageError, match="made with another"):
            verify(VerifyOptions(launcher="python", device="cpu", reference=kept, **options))  # pyright: ignore[reportArgumentType]
    assert len(list(ran.iterdir())) == 3


def test_what_cannot_be(repository: Path, tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "data").write_text("precious")
    with pytest.raises(UsageError, match="is no reference"):
        verify(VerifyOptions(command=["train.py"], device="cpu", save_reference=tmp_path / "mine"))
    with pytest.raises(UsageError, match="is no reference"):
        (repository / "train.py").write_text(SCRIPT + "\n")
        (repository / "train.py").write_text(SCRIPT.replace("0.1", "0.2"))
        verify(VerifyOptions(command=["train.py"], device="cpu", reference=tmp_path / "mine"))
    with pytest.raises(UsageError, match="runs the old side alone"):
        verify(VerifyOptions(command=["train.py"], save_reference=tmp_path / "a", resume=True))
    assert (tmp_path / "mine" / "data").read_text() == "precious"


def test_a_run_that_fails_is_not_kept(repository: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = VerifyOptions(command=["train.py", "/nowhere"], launcher="python", device="cpu", save_reference=tmp_path / "kept")
    assert verify(options) == 2
    assert "not saved" in capsys.readouterr().out
    assert not (tmp_path / "kept").exists()
