"""The folder of a verification, and what is left of one that was killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from to_fsdp2.equivalence.workspace import PREFIX, clear_leftovers, open_workspace

KILLED = """
import os, signal
from pathlib import Path
from to_fsdp2.equivalence import git
from to_fsdp2.equivalence.workspace import note_worktree, open_workspace

with open_workspace() as folder:
    note_worktree(folder / "old", Path.cwd())
    git.add_worktree(folder / "old", "HEAD", at=Path.cwd())
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setenv("TMPDIR", str(temporary))
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    folder = tmp_path / "repository"
    identity = ["-c", "user.name=a", "-c", "user.email=a@b"]
    subprocess.run(["git", "init", "-q", str(folder)], check=True)
    subprocess.run(["git", *identity, "commit", "-q", "--allow-empty", "-m", "first"], cwd=folder, check=True)
    return folder


def listed(repository: Path) -> int:
    command = ["git", "worktree", "list"]
    return len(subprocess.run(command, cwd=repository, check=True, capture_output=True, text=True).stdout.splitlines())


def folders() -> list[Path]:
    return list(Path(tempfile.gettempdir()).glob(f"{PREFIX}*"))


def test_after_sigkill_the_next_run_clears_folder_and_worktree(repository: Path) -> None:
    ended = subprocess.run([sys.executable, "-c", KILLED], cwd=repository, env=dict(os.environ), check=False)
    assert ended.returncode == -signal.SIGKILL
    assert len(folders()) == 1 and listed(repository) == 2
    with open_workspace() as own:
        assert folders() == [own] and listed(repository) == 1
    assert not folders()


def test_a_run_that_goes_on_is_left_alone(repository: Path) -> None:
    with open_workspace() as own:
        clear_leftovers()
        being_made = Path(tempfile.mkdtemp(prefix=PREFIX))
        clear_leftovers()
        assert set(folders()) == {own, being_made}
