"""Commits that are made without git's own `commit`: no hook, no filter and no signing program of a repository runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ..equivalence.git_apart import Git, borrowed
from ..transforms.findings import UserError


@dataclass(frozen=True)
class Commit:
    """A message, and the whole new content of the files that change, by POSIX path from the repository's root."""

    message: str
    files: Mapping[str, bytes]


def branch_of(repository: Path) -> str:
    """The branch that is checked out. Raises UserError where there is none, or nothing on it."""
    with borrowed(repository) as git:
        branch = _done(git, "symbolic-ref", "-q", "HEAD", otherwise="no branch is checked out to commit to")
        _done(git, "rev-parse", "-q", "--verify", "HEAD", otherwise="the branch has no commit yet")
    return branch


def write_commits(repository: Path, commits: Sequence[Commit]) -> list[str]:
    """Make commits on top of HEAD, each on the one before; no branch has them yet. Raises UserError."""
    made = []
    with borrowed(repository, own_index=True) as git:
        parent = _done(git, "rev-parse", "HEAD")
        _done(git, "read-tree", "HEAD")
        modes = _modes(git)
        for commit in commits:
            for path, data in commit.files.items():
                # As `git add` would have it, with line ends as the attributes say; a filter is not known to this git.
                blob = _done(git, "hash-object", "-w", "--stdin", "--path", path, given=data)
                _done(git, "update-index", "--add", "--cacheinfo", f"{modes.get(path, '100644')},{blob},{path}")
            tree = _done(git, "write-tree")
            parent = _done(git, "commit-tree", tree, "-p", parent, given=commit.message.encode())
            made.append(parent)
    return made


def move_branch(repository: Path, branch: str, commit: str) -> None:
    """Let a branch, which is checked out, end in a commit whose files lie in the working tree already. Raises UserError."""
    with borrowed(repository) as git:
        _done(git, "update-ref", "-m", "to-fsdp2 apply --commits", branch, commit)
        _done(git, "read-tree", "--reset", commit)
        git("update-index", "-q", "--refresh")


def _modes(git: Git) -> dict[str, str]:
    listed = git("ls-files", "-s", "-z")
    entries = [entry.partition("\t") for entry in listed.stdout.decode("utf-8", "surrogateescape").split("\0")] if listed else []
    return {path: about.split()[0] for about, _, path in entries if path}


def _done(git: Git, *arguments: str, given: bytes = b"", otherwise: str = "") -> str:
    result = git(*arguments, given=given)
    if result is None:
        raise UserError("git is not installed, so that nothing can be committed")
    if result.returncode != 0:
        lines = [line for line in result.stderr.decode(errors="replace").splitlines() if line.strip()]
        raise UserError(f"--commits: {otherwise or f'git {arguments[0]} failed: {lines[0] if lines else result.returncode}'}")
    return result.stdout.decode("utf-8", "surrogateescape").strip()
