"""Every command that the guide and the README show is run as it stands there, in a repository that has what it names."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
TRAIN = """\
import argparse

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP

if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=4)
    args = parser.parse_args()
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = DDP(torch.nn.Linear(4, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    torch.manual_seed(dist.get_rank())
    for step in range(args.steps):
        model(torch.randn(2, 4)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    dist.destroy_process_group()
"""
FILES = ("train.py", "src/train.py", "pkg/train.py", "train_ddp.py")
SUITABLE = {"diff": (0, 1), "apply": (0, 1), "brief": (0, 1), "check": (0, 1)}
"""Exit codes that say what was found; those of all other commands are 0."""


def blocks(page: str) -> list[list[str]]:
    """The commands of each block of code of a page, and one by one those within its sentences."""
    text = (ROOT / page).read_text()
    fenced = re.findall(r"^```(?:\w*)\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    found = [[line for line in block.splitlines() if line.startswith("to-fsdp2 ")] for block in fenced]
    prose = re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)
    return [commands for commands in found if commands] + [[one] for one in re.findall(r"`(to-fsdp2 [^`]*)`", prose)]


BLOCKS = [
    pytest.param(commands, id=f"{page.rpartition('/')[2]}-{number}-{commands[0][9:30].strip().replace(' ', '_')}")
    for page in ("README.md", "docs/guide.md")
    for number, commands in enumerate(blocks(page))
]


def shell(command: str, folder: Path) -> subprocess.CompletedProcess[str]:
    scripts = f"{folder.parent / 'bin'}{os.pathsep}{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, "PATH": scripts, "HOME": str(folder.parent), "SHELL": "/bin/bash", "OMP_NUM_THREADS": "1"}
    environment |= {"XDG_STATE_HOME": str(folder.parent / "state"), "TO_FSDP2_NO_CACHE": "1"}
    who = {f"GIT_{role}_{what}": "a@b" for role in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
    return subprocess.run(["bash", "-c", command], cwd=folder, env=environment | who, capture_output=True, text=True, timeout=600)


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """All that the commands name: scripts, a package, a folder, a tag; a pager that needs no terminal."""
    folder = tmp_path / "repository"
    for name in FILES:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(TRAIN)
    (folder / "pkg" / "__init__.py").touch()
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "less").write_text("#!/bin/sh\ncat\n")
    (tmp_path / "bin" / "less").chmod(0o755)
    made = shell("to-fsdp2 apply - --stdin-filename train_ddp.py < train_ddp.py > train_fsdp2.py", folder)
    assert made.returncode == 0, made.stderr
    assert shell("git init -q && git add -A && git commit -qm old && git tag v1.0", folder).returncode == 0
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("commands", BLOCKS)
def test_a_block_of_commands(commands: list[str], repository: Path) -> None:
    names = [command.split()[1] for command in commands]
    if "verify" in names and "apply" not in names[: names.index("verify")]:
        assert shell("to-fsdp2 apply train.py pkg src", repository).returncode == 0
    for command, name in zip(commands, names, strict=True):
        ended = shell(command, repository)
        assert ended.returncode in SUITABLE.get(name, (0,)), (command, ended.stdout[-2000:], ended.stderr[-2000:])
        assert "Traceback" not in ended.stderr, command
        if name == "verify":
            assert "\nequivalent: " in ended.stdout, command


def test_there_are_commands() -> None:
    assert len(BLOCKS) >= 10
