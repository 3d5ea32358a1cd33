"""The few git commands that sides are made with."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path


def git(*arguments: str, at: Path) -> str:
    """Standard output of a git command run in directory `at`; CalledProcessError if it fails.

    Variables such as GIT_DIR, which git sets while it runs a hook, would point past `at` and are dropped.
    """
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    finished = subprocess.run(
        ["git", "-c", "core.hooksPath=/dev/null", *arguments],
        cwd=at, env=environment, capture_output=True, text=True, errors="surrogateescape", check=True,
    )  # fmt: skip
    return finished.stdout


def toplevel(at: Path) -> Path | None:
    """The root of the repository that holds directory `at`; None outside a repository (or without git)."""
    try:
        return Path(git("rev-parse", "--show-toplevel", at=at).rstrip("\n")).resolve()
    except (OSError, subprocess.CalledProcessError):
        return None


def commit_of(ref: str, at: Path) -> str | None:
    """The full hash of the commit that `ref` names; None if there is no such commit."""
    try:
        return git("rev-parse", "--verify", "--quiet", "--end-of-options", f"{ref}^{{commit}}", at=at).strip()
    except (OSError, subprocess.CalledProcessError):
        return None


def names(*arguments: str, at: Path) -> list[str]:
    """The paths that a `-z` listing prints."""
    return [name for name in git(*arguments, at=at).split("\0") if name]


def add_worktree(path: Path, commit: str, at: Path) -> None:
    git("worktree", "add", "--quiet", "--detach", str(path), commit, at=at)


def remove_worktree(path: Path, at: Path) -> None:
    git("worktree", "remove", "--force", str(path), at=at)
