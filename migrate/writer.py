"""Writing many files so that each is old or new at any moment, and all are old when one cannot be written."""

from __future__ import annotations

import contextlib
import os
import stat
import tempfile
from dataclasses import dataclass
from pathlib import Path


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


def write_all(changes: list[Change]) -> None:
    """Write all changes or none.

    Every new text lies complete and flushed beside its file before the first file is replaced, so a full
    disk or a missing permission is met while everything is still old. A link is written through: its target
    is replaced. Raises WriteError.
    """
    staged: list[tuple[Change, Path, Path]] = []
    try:
        for change in changes:
            target = Path(os.path.realpath(change.path))
            with _reported(change):
                _require_unchanged(change, target)
                staged.append((change, target, _stage(target, change)))
        _replace_all(staged)
    finally:
        for _, _, temporary in staged:
            temporary.unlink(missing_ok=True)


def write_atomically(path: Path, data: bytes) -> None:
    """Replace or create one file, old or new at any moment. Raises WriteError."""
    old = path.read_bytes() if path.exists() else None
    write_all([Change(str(path), path, old, data)])


def _require_unchanged(change: Change, target: Path) -> None:
    if change.old is None:
        if target.exists():
            raise WriteError(change.label, "has come into being since it was looked for")
        return
    # Replacing needs no permission on the file itself, so a write protection would be passed over.
    if not target.stat().st_mode & (stat.S_IWUSR | stat.S_IWGRP | stat.S_IWOTH) or not os.access(target, os.W_OK):
        raise WriteError(change.label, "is read-only")
    if target.read_bytes() != change.old:
        raise WriteError(change.label, "has changed since it was read")


def _stage(target: Path, change: Change) -> Path:
    """The new bytes in a file of their own in the same folder, on disk, with the old one's mode and owner."""
    descriptor, name = tempfile.mkstemp(prefix=f".{target.name}.", suffix=".to-fsdp2", dir=target.parent)
    temporary = Path(name)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(change.new)
            file.flush()
            _take_over_attributes(file.fileno(), target if change.old is not None else None)
            os.fsync(file.fileno())
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    return temporary


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


def _replace_all(staged: list[tuple[Change, Path, Path]]) -> None:
    done: list[tuple[Change, Path]] = []
    for change, target, temporary in staged:
        try:
            with _reported(change):
                os.replace(temporary, target)
                done.append((change, target))
                _flush_folder(target.parent)
        except WriteError:
            _take_back(done)
            raise


def _take_back(done: list[tuple[Change, Path]]) -> None:
    for change, target in reversed(done):
        if change.old is None:
            target.unlink(missing_ok=True)
        else:
            os.replace(_stage(target, Change(change.label, target, change.new, change.old)), target)


def _flush_folder(folder: Path) -> None:
    """A rename is on disk only when its folder is."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def _reported(change: Change):
    try:
        yield
    except OSError as error:
        raise WriteError(change.label, error.strerror or str(error)) from error


def _umask() -> int:
    value = os.umask(0)
    os.umask(value)
    return value
