"""Which of some names the files of a repository say: code, notebooks, configurations and texts, ignored by git or not."""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path

from .ignore import BUILD_OUTPUT, is_default_excluded

_BEGINNING = 1024
_LARGEST = 64 * 1024**2
"""Bytes. What is longer, or has a zero among the first ones, is data."""
_MOST_FILES = 200_000
_MOST_BYTES = 1024**3
"""Of all files together: beyond, nobody would wait for the answer."""


class Mentions:
    """Answers for the files below a folder, but for environments and caches. ``changed`` are those that will be others."""

    def __init__(self, root: Path, changed: Mapping[str, bytes]) -> None:
        self.root = root
        self.changed = changed
        self.problem = ""
        """Why nobody knows."""

    def of(self, names: Collection[str], but_for: Collection[str]) -> set[str]:
        """The names that any file says but for some; all of them where nobody knows."""
        words = re.compile(rf"\b(?:{'|'.join(sorted(names))})\b")
        found: set[str] = set()
        try:
            for data in self._contents(but_for):
                found.update(words.findall(data.decode(errors="replace")))
        except OSError as error:
            self.problem = f"{error.filename} cannot be read"
        return set(names) if self.problem else found

    def _contents(self, but_for: Collection[str]) -> Iterator[bytes]:
        yield from (data for label, data in self.changed.items() if label not in but_for)
        known = {*self.changed, *but_for}
        read = 0
        for count, path in enumerate(self._files()):
            if count >= _MOST_FILES or read > _MOST_BYTES:
                self.problem = f"there are more than {_MOST_FILES} files, or 1 GiB of text"
                return
            if path.relative_to(self.root).as_posix() not in known:
                data = _read(path)
                read += len(data)
                yield data

    def _files(self) -> Iterator[Path]:
        def fail(error: OSError) -> None:
            raise error

        for folder, folders, files in os.walk(self.root, onerror=fail):
            folders[:] = [
                name for name in folders
                if name in BUILD_OUTPUT or not is_default_excluded(os.path.join(folder, name), name)
            ]  # fmt: skip
            yield from (Path(folder, name) for name in files)


def _read(path: Path) -> bytes:
    if not path.is_file() or path.stat().st_size > _LARGEST:
        return b""
    with path.open("rb") as file:
        beginning = file.read(_BEGINNING)
        return b"" if b"\0" in beginning else beginning + file.read()
