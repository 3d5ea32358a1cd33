"""Where the old and the new script run.

Each side gets a directory of its own, so that neither sees the other's code, checkpoints or caches, and your
working directory stays as it is. A git ref becomes a worktree; a directory becomes a copy (of a repository: a
worktree of HEAD with the changes of the working directory on top); what git does not track is copied along, to both
sides. All of it is removed afterwards.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from . import git
from .options import UsageError, VerifyOptions
from .verdict import Side
from .working_files import check_size, repoint_links, transfer, walk
from .workspace import note_worktree


@dataclass(frozen=True)
class Place:
    """One side, ready to run.

    `root` is the directory the script runs in, `top` the directory that all of the side's code lies in (`root` or
    one above it), `original` the directory that `top` was made from, `sibling` the one that the other side was made from.
    `script` is set when the side is a file.
    """

    side: Side
    origin: str
    root: Path
    top: Path
    original: Path
    script: str | None = None
    sibling: Path | None = None


@dataclass(frozen=True)
class _Request:
    """What a user wrote for one side, looked up: exactly one of `commit` and `path` is set."""

    side: Side
    value: str
    commit: str | None = None
    path: Path | None = None


@contextmanager
def open_sides(options: VerifyOptions, workspace: Path) -> Iterator[tuple[Place, Place]]:
    """Both sides, below `workspace`; their worktrees are taken off the repository's list afterwards.

    Raises UsageError for a value that is neither a path nor a ref, for a file against a directory, and for more
    untracked data than is copied unasked.
    """
    old = _look_up("old", options.old)
    # Where the old side is run alone, nobody has to have a new one.
    new = _look_up("new", options.new if options.save_reference is None else options.old)
    files = [request.path is not None and request.path.is_file() for request in (old, new)]
    if files[0] != files[1]:
        raise UsageError(
            f"--old {old.value} and --new {new.value}: compare a file with a file, or two directories or refs"
        )
    against_ref = old.commit is not None or new.commit is not None
    with ExitStack() as cleanup:
        first = _open(old, options, workspace / "old", against_ref, cleanup)
        second = _open(new, options, workspace / "new", against_ref, cleanup)
        yield replace(first, sibling=second.original), replace(second, sibling=first.original)


@contextmanager
def open_side(side: Side, options: VerifyOptions, place: Path) -> Iterator[Place]:
    """One of two sides that can be compared, once more, at a place of its own."""
    old, new = _look_up("old", options.old), _look_up("new", options.new)
    against_ref = old.commit is not None or new.commit is not None
    with ExitStack() as cleanup:
        yield _open(old if side == "old" else new, options, place, against_ref, cleanup)


@contextmanager
def open_working_tree(options: VerifyOptions, workspace: Path) -> Iterator[Place]:
    """A copy of the working directory, with all of the repository that it lies in."""
    with ExitStack() as cleanup:
        yield _open(_look_up("old", "."), options, workspace / "old", True, cleanup)


def _look_up(side: Side, value: str) -> _Request:
    path = Path(value)
    if path.exists():
        return _Request(side, value, path=path.resolve())
    commit = git.commit_of(value, at=Path.cwd())
    if commit is None:
        raise UsageError(f"--{side} {value}: neither an existing path nor a commit of the repository in {Path.cwd()}")
    return _Request(side, value, commit=commit)


def _open(request: _Request, options: VerifyOptions, place: Path, against_ref: bool, cleanup: ExitStack) -> Place:
    here = Path.cwd().resolve()
    if request.commit is not None:
        top = git.toplevel(here)
        if top is None:
            raise UsageError(f"--{request.side} {request.value}: {here} is not in a git repository")
        _worktree(place, request.commit, top, cleanup)
        _bring_working_files(top, place, options)
        origin = f"{request.value} ({request.commit[:12]})"
        return Place(request.side, origin, place / here.relative_to(top), place, top)

    assert request.path is not None
    script = None
    directory = request.path
    if request.path.is_file():
        directory = here if request.path.is_relative_to(here) else request.path.parent
        script = request.path.relative_to(directory).as_posix()
    repository = git.toplevel(directory)
    if options.in_place:
        return Place(request.side, str(request.path), directory, directory, directory, script)
    if repository is not None and (against_ref or repository == directory) and git.commit_of("HEAD", repository):
        _worktree(place, "HEAD", repository, cleanup)
        _bring_changes(repository, place)
        _bring_working_files(repository, place, options)
        return Place(
            request.side, str(request.path), place / directory.relative_to(repository), place, repository, script
        )
    _copy(directory, place, options, in_repository=repository is not None)
    return Place(request.side, str(request.path), place, place, directory, script)


def _worktree(place: Path, commit: str, repository: Path, cleanup: ExitStack) -> None:
    cleanup.callback(_forget, place, repository)
    note_worktree(place, repository)
    git.add_worktree(place, commit, at=repository)


def _forget(place: Path, repository: Path) -> None:
    # An interrupted `git worktree add` may have registered nothing yet, which is as good as removed.
    try:
        git.remove_worktree(place, at=repository)
    except subprocess.CalledProcessError:
        if place.exists():
            shutil.rmtree(place, ignore_errors=True)  # git takes what is there off its list only where it is whole
            git.git("worktree", "prune", at=repository)


def _bring_changes(repository: Path, place: Path) -> None:
    """Makes the tracked files of a worktree of HEAD what they are in the working directory."""
    changed = git.names("diff", "--name-only", "--no-renames", "--ignore-submodules=all", "-z", "HEAD", at=repository)
    for name in changed:
        if (place / name).is_symlink() or (place / name).is_file():
            (place / name).unlink()
    transfer([name for name in changed if _is_file(repository / name)], repository, place)


def _bring_working_files(repository: Path, place: Path, options: VerifyOptions) -> None:
    tracked = git.names("ls-files", "-z", at=repository)
    repoint_links(tracked, repository, place)
    if options.untracked == "none":
        return
    known = set(tracked)
    _bring([name for name in walk(repository, _skipped(options)) if name not in known], repository, place, options)


def _copy(directory: Path, place: Path, options: VerifyOptions, in_repository: bool) -> None:
    if options.untracked == "none" and not in_repository:
        raise UsageError(f"--untracked none: {directory} is not in a git repository, so nothing in it is tracked")
    place.mkdir(parents=True)
    tracked = set(git.names("ls-files", "-z", at=directory)) if in_repository else set()
    transfer([name for name in sorted(tracked) if _is_file(directory / name)], directory, place)
    if options.untracked != "none":
        names = [name for name in walk(directory, _skipped(options)) if name not in tracked]
        _bring(names, directory, place, options)


def _bring(names: list[str], source: Path, place: Path, options: VerifyOptions) -> None:
    link = options.untracked == "link"
    if not link:
        check_size(names, source)
    transfer(names, source, place, link)


def _skipped(options: VerifyOptions) -> tuple[Path, ...]:
    return () if options.report is None else (options.report.resolve(),)


def _is_file(path: Path) -> bool:
    return path.is_symlink() or path.is_file()
