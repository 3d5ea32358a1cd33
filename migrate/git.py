"""What the tool asks git: whether the tree is clean, and which ignored files are tracked all the same."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterable
from pathlib import Path

from ..transforms.findings import UserError


def repository_of(path: Path) -> Path | None:
    """The root of the git repository or worktree that holds `path`, None outside of one."""
    for folder in (path, *path.parents):
        # A worktree and a submodule have a `.git` file in place of the folder.
        if (folder / ".git").exists():
            return folder
    return None


def ignored_but_tracked(repository: Path) -> list[Path]:
    """Python files that .gitignore names but git tracks, so that git itself does not ignore them."""
    result = _git(repository, "ls-files", "-z", "--cached", "--ignored", "--exclude-standard", "--", "*.py")
    if result is None or result.returncode != 0:
        return []
    return [repository / os.fsdecode(name) for name in result.stdout.split(b"\0") if name]


def changed_files(repository: Path, paths: Iterable[Path]) -> list[str]:
    """What an edit could be mixed up with: changed tracked files, and untracked Python files below `paths`.

    POSIX paths relative to the repository. Raises UserError when git cannot say.
    """
    result = _git(
        repository,
        "status",
        "--porcelain=v1",
        "-z",
        "--no-renames",
        "--untracked-files=all",
        "--ignore-submodules=dirty",
    )
    if result is None:
        raise UserError("git is not installed, so the tree cannot be checked; --allow-dirty goes on without")
    if result.returncode != 0:
        reason = result.stderr.decode(errors="replace").strip() or "no reason given"
        raise UserError(f"git cannot tell whether the tree is clean: {reason.splitlines()[0]}")
    named = list(paths)
    changed = []
    for entry in filter(None, result.stdout.split(b"\0")):
        state, name = entry[:2], os.fsdecode(entry[3:])
        file = repository / name
        if state != b"??" or (file.suffix == ".py" and any(path == file or path in file.parents for path in named)):
            changed.append(name)
    return changed


def _git(repository: Path, *arguments: str) -> subprocess.CompletedProcess[bytes] | None:
    """The finished command, None where git is not installed."""
    try:
        return subprocess.run(
            ["git", *arguments],
            cwd=repository,
            capture_output=True,
            check=False,
            env={**os.environ, "GIT_OPTIONAL_LOCKS": "0"},
        )
    except FileNotFoundError:
        return None
