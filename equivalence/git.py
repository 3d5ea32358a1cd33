"""The few git commands that sides are made with.

Those that look at files run apart from the repository's configuration, so that no filter or monitor that it names is run.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

from .git_apart import borrowed, folders_of
from .options import UsageError


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
    """The paths that a `-z` listing prints. Raises UsageError where git cannot say."""
    root = toplevel(at)
    with borrowed(root or at, at=at) as apart:
        finished = apart(*arguments)
    if finished is None or finished.returncode != 0:
        raise UsageError(f"git cannot list the files of {at}: {_reason(finished)}")
    return [os.fsdecode(name) for name in finished.stdout.split(b"\0") if name]


def add_worktree(path: Path, commit: str, at: Path) -> None:
    """A worktree with the files of a commit. Raises UsageError where git cannot make it."""
    try:
        git("worktree", "add", "--quiet", "--detach", "--no-checkout", str(path), commit, at=at)
    except subprocess.CalledProcessError as error:
        raise UsageError(f"git cannot check out {commit}: {error.stderr.strip()}") from error
    folders = folders_of(path)
    assert folders is not None
    with borrowed(path, own_index=True) as apart:
        finished = apart("reset", "--quiet", "--hard", commit)
        found = apart("rev-parse", "--path-format=absolute", "--git-path", "index")
        if finished is None or found is None or finished.returncode != 0:
            raise UsageError(f"git cannot check out {commit}: {_reason(finished)}")
        shutil.copyfile(os.fsdecode(found.stdout).rstrip("\n"), folders.own / "index")


def remove_worktree(path: Path, at: Path) -> None:
    git("worktree", "remove", "--force", str(path), at=at)


def _reason(finished: subprocess.CompletedProcess[bytes] | None) -> str:
    return "git is not installed" if finished is None else finished.stderr.decode(errors="replace").strip()
