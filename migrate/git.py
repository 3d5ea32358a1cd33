"""What the tool asks git: whether the tree is clean, which ignored files are tracked, which ignore rules count."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterable
from pathlib import Path

from ..equivalence.git_apart import borrowed, folders_of
from ..transforms.findings import UserError


def repository_of(path: Path) -> Path | None:
    """The root of the git repository or worktree that holds `path`, None outside of one."""
    for folder in (path, *path.parents):
        # A worktree and a submodule have a `.git` file in place of the folder.
        if (folder / ".git").exists():
            return folder
    return None


def tracked_files(repository: Path) -> list[Path]:
    """Python files and notebooks that git tracks; none where git cannot say."""
    result = _git(repository, "ls-files", "-z", "--cached", "--", "*.py", "*.ipynb")
    if result is None or result.returncode != 0:
        return []
    return [repository / os.fsdecode(name) for name in result.stdout.split(b"\0") if name]


def files_at(repository: Path, revision: str) -> dict[str, str] | None:
    """The Python files and notebooks of a commit: POSIX path → object; None where there is no such commit."""
    if revision.startswith("-"):
        return None
    result = _git(repository, "ls-tree", "-r", "-z", "--full-tree", revision)
    if result is None or result.returncode != 0:
        return None
    found = {}
    for entry in filter(None, result.stdout.split(b"\0")):
        about, _, path = entry.partition(b"\t")
        mode, kind, name = about.decode().split()
        if kind == "blob" and mode != "120000" and path.endswith((b".py", b".ipynb")):
            found[os.fsdecode(path)] = name
    return found


def contents(repository: Path, objects: list[str]) -> list[bytes]:
    """The bytes of objects that are there."""
    asked = "".join(f"{name}\n" for name in objects).encode()
    result = _git(repository, "cat-file", "--batch", given=asked) if objects else None
    found = []
    rest = result.stdout if result is not None else b""
    for _ in objects:
        head, _, rest = rest.partition(b"\n")
        size = int(head.split()[2])
        found.append(rest[:size])
        rest = rest[size + 1 :]
    return found


def exclude_files(repository: Path) -> list[Path]:
    """The ignore files beside .gitignore that count for a repository, the weaker one first; they need not exist."""
    result = _git(repository, "config", "-z", "--type=path", "--get", "core.excludesFile")
    if result is not None and result.returncode == 0:
        user = repository / os.fsdecode(result.stdout.rstrip(b"\0"))
    else:
        settings = os.environ.get("XDG_CONFIG_HOME") or os.path.expanduser("~/.config")
        user = Path(settings, "git", "ignore")
    folders = folders_of(repository)
    return [user] if folders is None else [user, folders.common / "info" / "exclude"]


def changed_files(repository: Path, files: Iterable[Path]) -> list[str]:
    """What an edit could be mixed up with: changed tracked files, and those of `files` that are not tracked.

    Of a submodule, or another repository inside, only `files` count. POSIX paths relative to the repository. Raises
    UserError when git cannot say.
    """
    by_folder: dict[Path, list[Path]] = {}
    for file in files:
        by_folder.setdefault(file.parent, []).append(file)
    by_repository: dict[Path, set[Path]] = {repository: set()}
    for folder, inside in by_folder.items():
        by_repository.setdefault(repository_of(folder) or repository, set()).update(inside)
    found: set[Path] = set()
    for own, inside in by_repository.items():
        changed = _changed(own)
        found |= inside - set(tracked_files(own)) | (changed if own == repository else changed & inside)
    return sorted(file.relative_to(repository).as_posix() for file in found)


def _changed(repository: Path) -> set[Path]:
    # Untracked files are not asked for: git would open every ignore file, were it a pipe.
    result = _git(
        repository, "status", "--porcelain=v1", "-z", "--no-renames", "--untracked-files=no", "--ignore-submodules=dirty"
    )
    if result is None:
        raise UserError("git is not installed, so the tree cannot be checked; --allow-dirty goes on without")
    if result.returncode != 0:
        reason = result.stderr.decode(errors="replace").strip() or "no reason given"
        raise UserError(f"git cannot tell whether the tree is clean: {reason.splitlines()[0]}")
    return {repository / os.fsdecode(entry[3:]) for entry in result.stdout.split(b"\0") if entry}


def _git(repository: Path, *arguments: str, given: bytes = b"") -> subprocess.CompletedProcess[bytes] | None:
    """The finished command, None where git is not installed."""
    with borrowed(repository) as git:
        return git(*arguments, given=given)
