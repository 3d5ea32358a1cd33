"""The few git commands that sides are made with.

Those that look at files run apart from the repository's configuration, so that no filter or monitor that it names is run.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

from .git_apart import borrowed, folders_of
from .options import UsageError

_MISSING = re.compile(r"unable to read (?:sha1 file|tree)|missing (?:blob|tree|object)|could not fetch .* from promisor")
"""What git says where objects are not there, as in a clone that was told to leave them out."""


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
        raise UsageError(f"git cannot list the files of {at}: {_reason(_said(finished))}")
    return [os.fsdecode(name) for name in finished.stdout.split(b"\0") if name]


def add_worktree(path: Path, commit: str, at: Path) -> None:
    """A worktree with the files of a commit. Raises UsageError where git cannot make it."""
    try:
        git("worktree", "add", "--quiet", "--detach", "--no-checkout", str(path), commit, at=at)
    except subprocess.CalledProcessError as error:
        raise UsageError(_not_checked_out(commit, error.stderr)) from error
    folders = folders_of(path)
    assert folders is not None
    with borrowed(path, own_index=True) as apart:
        finished = apart("reset", "--quiet", "--hard", commit)
        found = apart("rev-parse", "--path-format=absolute", "--git-path", "index")
        if finished is None or found is None or finished.returncode != 0:
            raise UsageError(_not_checked_out(commit, _said(finished)))
        shutil.copyfile(os.fsdecode(found.stdout).rstrip("\n"), folders.own / "index")


def remove_worktree(path: Path, at: Path) -> None:
    git("worktree", "remove", "--force", str(path), at=at)


def _said(finished: subprocess.CompletedProcess[bytes] | None) -> str:
    return "git is not installed" if finished is None else finished.stderr.decode(errors="replace")


def _not_checked_out(commit: str, said: str) -> str:
    if _MISSING.search(said):
        return (f"this clone does not hold all files of {commit[:12]}: fetch them while the remote can be reached, "
                f"by `git archive {commit[:12]} > /dev/null`")  # fmt: skip
    return f"git cannot check out {commit[:12]}: {_reason(said)}"


def _reason(said: str) -> str:
    """What git says last of all, for which the rest is the way there: a message is one line."""
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    return next((line for line in reversed(lines) if line.startswith(("fatal:", "error:"))), lines[-1] if lines else "no reason")
