"""Writing many files as a transaction: all are new or all are old, whatever happens in between.

Every new text lies complete and flushed beside its file before the first file is replaced, and every old file keeps a
second name, so a full disk or a missing permission is met while everything is still old, and going back needs no room.
Signals wait until a file is done. After a kill, the next run does from the journal what could not be done here.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import os
import secrets
import shutil
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from ..transforms.findings import UserError
from .journal import Entry, Journal, digest, flush_folder
from .signals import Ended, Waiting, kept_waiting
from .state import state_folder

ENDING = ".to-fsdp2"
"""Of the names of files that are here while a transaction is under way."""


@dataclass(frozen=True)
class Change:
    """New bytes for a file; `old` is None for a file that is to be added."""

    label: str
    path: Path
    old: bytes | None
    new: bytes


class WriteError(Exception):
    """A file could not be written; nothing has been."""

    def __init__(self, label: str, reason: str) -> None:
        super().__init__(f"{label}: {reason}")
        self.label = label
        self.reason = reason


def write_all(changes: list[Change], root: Path) -> None:
    """Write all changes below `root` or none.

    A link is written through where it stays in the tree: its target is replaced. Raises WriteError, and `Ended` when a
    signal has come; nothing is written then, unless the signal says what was.
    """
    if not changes:
        return
    with kept_waiting() as waiting, _one_at_a_time(root):
        name = secrets.token_hex(8)
        targets = [_target(change, root) for change in changes]
        staged = [_Staged(change, target, name) for change, target in zip(changes, targets, strict=True)]
        try:
            journal = Journal(root, name, [one.entry for one in staged])
        except OSError as error:
            raise WriteError("the journal", error.strerror or str(error)) from error
        try:
            _prepare(staged, waiting)
            _replace_all(staged, waiting, journal)
        finally:
            # What could not be put back, or removed, is left to the next run, with the journal and the old files.
            if not any(one.is_stuck for one in staged):
                cleared = [one.clear() for one in staged]
                if all(cleared):
                    journal.close()
    if waiting.number is not None:
        raise Ended(waiting.number, f"{len(changes)} files had been written")


def write_atomically(path: Path, data: bytes) -> None:
    """Replace or create one file, old or new at any moment. Raises WriteError."""
    old = path.read_bytes() if path.exists() else None
    target = Path(os.path.realpath(path))
    one = _Staged(Change(str(path), path, old, data), target, "")
    with kept_waiting() as waiting:
        try:
            with _reported(one.change):
                one.staged.unlink(missing_ok=True)  # of a run that was killed
                one.stage()
                waiting.check()
                os.replace(one.staged, target)
        finally:
            one.staged.unlink(missing_ok=True)


@dataclass
class _Staged:
    """A change with the names that its file goes by while it is made."""

    change: Change
    target: Path
    name: str
    signature: tuple[int, ...] = ()
    is_replaced: bool = False
    is_stuck: bool = False

    @property
    def staged(self) -> Path:
        return self._beside("new")

    @property
    def kept(self) -> Path:
        return self._beside("old")

    def _beside(self, kind: str) -> Path:
        # A name may be as long as a file system allows; a longer one would not be.
        short = hashlib.sha256(os.fsencode(self.target.name)).hexdigest()[:16]
        return self.target.with_name("." + ".".join(filter(None, [short, self.name, kind])) + ENDING)

    @property
    def entry(self) -> Entry:
        """What the journal says of it."""
        old = None if self.change.old is None else digest(self.change.old)
        return Entry(str(self.target), str(self.staged), str(self.kept), old, digest(self.change.new))

    def stage(self) -> None:
        """The new bytes in a file of their own in the same folder, on disk, with the old one's mode and owner."""
        with open(self.staged, "xb") as file:
            file.write(self.change.new)
            file.flush()
            _take_over_attributes(file.fileno(), self.target if self.change.old is not None else None)
            os.fsync(file.fileno())

    def keep(self) -> None:
        """A second name for the old file, or a copy of it where a file system knows no second names."""
        if self.change.old is None:
            return
        try:
            os.link(self.target, self.kept)
        except OSError as error:
            if error.errno not in (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK, errno.EXDEV):
                raise
            shutil.copy2(self.target, self.kept)

    def replace(self) -> None:
        """Put the new file in the place of the old one."""
        if self.signature != _signature(self.target):
            raise WriteError(self.change.label, "has changed since it was read")
        os.replace(self.staged, self.target)
        self.is_replaced = True

    def take_back(self) -> None:
        """Put the old file back in its place."""
        if not self.is_replaced:
            return
        try:
            if self.change.old is None:
                self.target.unlink(missing_ok=True)
            else:
                os.replace(self.kept, self.target)
        except OSError:
            self.is_stuck = True

    def clear(self) -> bool:
        """Remove what is beside the file; False where that cannot be."""
        try:
            for leftover in (self.staged, self.kept):
                leftover.unlink(missing_ok=True)
        except OSError:
            return False
        return True


def _target(change: Change, root: Path) -> Path:
    """Where a change is written: what its path leads to, which must not be out of the tree."""
    target = Path(os.path.realpath(change.path))
    if not is_inside(target, root):
        raise WriteError(change.label, "is a link that leads out of the tree")
    return target


def is_inside(target: Path, root: Path) -> bool:
    """Whether a path without links lies in a tree, and not among git's own files."""
    root = Path(os.path.realpath(root))
    return target.is_relative_to(root) and ".git" not in target.relative_to(root).parts


def _prepare(staged: list[_Staged], waiting: Waiting) -> None:
    for one in staged:
        waiting.check()
        with _reported(one.change):
            _require_unchanged(one.change, one.target)
            one.signature = _signature(one.target)
            one.stage()
    for one in staged:
        waiting.check()
        with _reported(one.change):
            one.keep()
            # A second name is a change of the file's own data as well.
            one.signature = _signature(one.target)
    _flush_folders(staged)


def _replace_all(staged: list[_Staged], waiting: Waiting, journal: Journal) -> None:
    try:
        for one in staged:
            waiting.check()
            with _reported(one.change):
                one.replace()
        _flush_folders(staged)
        with _reported(staged[-1].change):
            journal.finish()
    except BaseException:
        for one in reversed(staged):
            one.take_back()
        raise


def _require_unchanged(change: Change, target: Path) -> None:
    if change.old is None:
        if os.path.lexists(target):
            raise WriteError(change.label, "has come into being since it was looked for")
        return
    # Replacing needs no permission on the file itself, so a write protection would be passed over.
    if not target.stat().st_mode & (stat.S_IWUSR | stat.S_IWGRP | stat.S_IWOTH) or not os.access(target, os.W_OK):
        raise WriteError(change.label, "is read-only")
    if target.read_bytes() != change.old:
        raise WriteError(change.label, "has changed since it was read")


def _signature(target: Path) -> tuple[int, ...]:
    """What tells whether somebody else has written a file; empty without one."""
    try:
        status = target.stat()
    except FileNotFoundError:
        return ()
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns


def _take_over_attributes(descriptor: int, target: Path | None) -> None:
    if target is None:
        os.fchmod(descriptor, 0o666 & ~_umask())
        return
    status = target.stat()
    if (status.st_uid, status.st_gid) != (os.geteuid(), os.getegid()):
        # Only the superuser may give a file away; for others the group is what can be kept.
        with contextlib.suppress(PermissionError):
            os.fchown(descriptor, -1, status.st_gid)
        with contextlib.suppress(PermissionError):
            os.fchown(descriptor, status.st_uid, -1)
    os.fchmod(descriptor, stat.S_IMODE(status.st_mode))


def _flush_folders(staged: list[_Staged]) -> None:
    for folder in {one.target.parent for one in staged}:
        with contextlib.suppress(OSError):  # a folder may be closed to reading, and some file systems cannot
            flush_folder(folder)


@contextlib.contextmanager
def _one_at_a_time(root: Path) -> Iterator[None]:
    """Nobody else writes to this tree meanwhile."""
    name = hashlib.sha256(os.fsencode(os.path.realpath(root))).hexdigest()
    with open(state_folder("locks") / name, "w", encoding="utf-8") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise UserError(f"another run is writing to {root}") from error
        yield


@contextlib.contextmanager
def _reported(change: Change) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise WriteError(change.label, error.strerror or str(error)) from error


def _umask() -> int:
    value = os.umask(0)
    os.umask(value)
    return value
