"""Whether a name is said outside of the Python code that is analysed: in configurations, scripts, or unconnected files."""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterator, Mapping
from functools import cached_property
from pathlib import Path

_ENDINGS = (".yaml", ".yml", ".json", ".toml", ".cfg", ".ini", ".conf", ".gin", ".jsonnet", ".sh", ".bash", ".slurm", ".txt")
_LARGEST = 1024**2
_MOST_FILES = 20_000
_MOST_BYTES = 128 * 1024**2


class NamesOutside:
    """Answers for names, over the files below a folder and the contents of Python files without facts."""

    def __init__(self, root: Path, contents: Mapping[str, bytes], analysed: Collection[str]) -> None:
        self.root = root
        self.contents = contents
        self.analysed = analysed
        self.answers: dict[str, bool] = {}
        """What was asked, with the answers: it rests on files that are no Python code."""

    def hold(self, name: str) -> bool:
        """Whether a name stands in one of them; yes where there are too many to look into."""
        if name not in self.answers:
            self.answers[name] = self._hold(name)
        return self.answers[name]

    def _hold(self, name: str) -> bool:
        word = re.compile(rb"\b" + re.escape(name.encode()) + rb"\b")
        if any(word.search(data) for label, data in self.contents.items() if label not in self.analysed):
            return True
        return self._texts is None or any(map(word.search, self._texts))

    @cached_property
    def _texts(self) -> list[bytes] | None:
        """The contents of configurations and scripts; None where they are too many or cannot be read."""
        texts: list[bytes] = []
        size = 0
        for count, path in enumerate(self._configurations()):
            if count > _MOST_FILES or size > _MOST_BYTES:
                return None
            try:
                if path.stat().st_size <= _LARGEST:
                    texts.append(path.read_bytes())
                    size += len(texts[-1])
            except OSError:
                return None
        return texts

    def _configurations(self) -> Iterator[Path]:
        for folder, folders, names in os.walk(self.root):
            folders[:] = [name for name in folders if not name.startswith(".") and name not in ("node_modules", "__pycache__")]
            yield from (Path(folder, name) for name in names if name.endswith(_ENDINGS) or "." not in name)
