"""The journal of a transaction: what to put back when a run is killed while it replaces files.

It is on disk before the first file is touched. `NAME.json` says that the transaction is under way, `NAME.done` that all
files are replaced and only the old ones, kept beside them, remain to be removed. Its process holds a lock on it, so that
a journal without one is a dead run's.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO

from .state import state_folder

_FOLDER = "journals"


@dataclass(frozen=True)
class Entry:
    """One file: where it lies, its new text and its old one while both are kept beside it, and their hashes."""

    path: str
    staged: str
    kept: str
    old: str | None
    new: str


class Journal:
    """The journal of this process."""

    def __init__(self, root: Path, name: str, entries: Sequence[Entry]) -> None:
        folder = state_folder(_FOLDER)
        self._path = folder / f"{name}.json"
        unfinished = folder / f"{name}.new"
        self._file: IO[str] = unfinished.open("x", encoding="utf-8")
        fcntl.flock(self._file, fcntl.LOCK_EX)
        try:
            json.dump({"root": str(root), "entries": [asdict(entry) for entry in entries]}, self._file)
            self._file.flush()
            os.fsync(self._file.fileno())
            unfinished.rename(self._path)
        except BaseException:
            unfinished.unlink(missing_ok=True)
            raise
        flush_folder(folder)

    def finish(self) -> None:
        """All files are replaced: from here on the transaction is done, whatever happens."""
        self._path = self._path.rename(self._path.with_suffix(".done"))
        flush_folder(self._path.parent)

    def close(self) -> None:
        """Nothing is left to do."""
        self._path.unlink(missing_ok=True)
        self._file.close()


@dataclass
class Unfinished:
    """What a run that was killed has left."""

    root: Path
    entries: list[Entry]
    is_done: bool
    _path: Path
    _file: IO[str]

    def settle(self) -> list[str]:
        """Put the old files back, or remove what a finished run has left; gives the files that were changed since then."""
        changed_since = []
        for entry in self.entries:
            if not self.is_done and not _put_back(entry):
                changed_since.append(entry.path)
                continue
            for leftover in (entry.staged, entry.kept):
                Path(leftover).unlink(missing_ok=True)
        self._path.unlink(missing_ok=True)
        self.close()
        return changed_since

    @property
    def replaced(self) -> int:
        """How many files have their new text."""
        return sum(digest_of(entry.path) == entry.new for entry in self.entries)

    def close(self) -> None:
        """Let go of it."""
        self._file.close()


def unfinished_in(root: Path) -> Iterator[Unfinished]:
    """What killed runs have left in a tree, or in one that it is a part of."""
    for path in sorted(state_folder(_FOLDER).iterdir()):
        try:
            file = path.open(encoding="utf-8")
        except OSError:
            continue
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            document = json.load(file)
            unfinished = Unfinished(
                Path(document["root"]), [Entry(**entry) for entry in document["entries"]], path.suffix == ".done", path, file
            )
        except BlockingIOError:  # its process lives
            file.close()
            continue
        except (ValueError, KeyError, TypeError):  # killed while it was written, before anything else was
            path.unlink(missing_ok=True)
            file.close()
            continue
        if path.suffix == ".new":
            path.unlink(missing_ok=True)
        elif root == unfinished.root or root in unfinished.root.parents or unfinished.root in root.parents:
            yield unfinished
            continue
        file.close()


def digest(data: bytes) -> str:
    """What a journal knows a text by."""
    return hashlib.sha256(data).hexdigest()


def digest_of(path: str) -> str | None:
    """The digest of a file, None where there is none."""
    try:
        return digest(Path(path).read_bytes())
    except OSError:
        return None


def flush_folder(folder: Path) -> None:
    """A rename is on disk only when its folder is."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _put_back(entry: Entry) -> bool:
    """Give a file its old text; False when it has neither that nor the new one, so that somebody else has written it."""
    now = digest_of(entry.path)
    if now == entry.old:
        return True
    if now != entry.new:
        return not os.path.exists(entry.kept)
    if entry.old is None:
        Path(entry.path).unlink()
    else:
        os.replace(entry.kept, entry.path)
    return True
