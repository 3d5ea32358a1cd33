"""The folder that a verification works in, gone at its end: what one that was killed left behind, the next one clears."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from . import git

PREFIX = "to-fsdp2-verify-"
LOCK = "lock"
"""Held by the process that the folder belongs to: the kernel lets go of it however the process ends."""
WORKTREES = "worktrees.jsonl"


@contextmanager
def open_workspace() -> Iterator[Path]:
    """A new folder below the temporary directory."""
    clear_leftovers()
    folder = Path(tempfile.mkdtemp(prefix=PREFIX)).resolve()
    try:
        with open(folder / "locking", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            # Under its name it is there only once it is held.
            os.rename(folder / "locking", folder / LOCK)
            yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def note_worktree(place: Path, repository: Path) -> None:
    """Writes down that the repository is about to list a worktree below the workspace."""
    place.parent.mkdir(parents=True, exist_ok=True)
    with open(place.parent / WORKTREES, "a", encoding="utf-8") as notes:
        notes.write(json.dumps([str(place), str(repository)]) + "\n")


def clear_leftovers() -> None:
    """Removes the folders, and the worktrees in them, whose process is no more."""
    for folder in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
        # Of other users, and such that are just being made, nothing is touched.
        with contextlib.suppress(OSError), open(folder / LOCK, "r+") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            _forget_worktrees(folder)
            shutil.rmtree(folder, ignore_errors=True)


def _forget_worktrees(folder: Path) -> None:
    notes = [*folder.glob(WORKTREES), *folder.glob(f"*/{WORKTREES}"), *folder.glob(f"*/*/{WORKTREES}")]
    for line in (line for note in notes for line in note.read_text(encoding="utf-8").splitlines()):
        with contextlib.suppress(OSError, ValueError, subprocess.CalledProcessError):
            place, repository = json.loads(line)
            git.remove_worktree(Path(place), at=Path(repository))
