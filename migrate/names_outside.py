"""Whether a name is said outside of the Python code that is analysed: in configurations, scripts, or unconnected files."""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path

_ENDINGS = (".yaml", ".yml", ".json", ".toml", ".cfg", ".ini", ".conf", ".gin", ".jsonnet", ".sh", ".bash", ".slurm", ".txt")
_LARGEST = 1024**2
_MOST_FILES = 20_000


class NamesOutside:
    """Answers for names, over the files below a folder and the contents of Python files without facts."""

    def __init__(self, root: Path, contents: Mapping[str, bytes], analysed: Collection[str]) -> None:
        self.root = root
        self.contents = contents
        self.analysed = analysed
        self.was_asked = False
        """Whether an answer rests on files that are no Python code."""

    def hold(self, name: str) -> bool:
        """Whether a name stands in one of them; yes where there are too many to look into."""
        self.was_asked = True
        word = re.compile(rb"\b" + re.escape(name.encode()) + rb"\b")
        if any(word.search(data) for label, data in self.contents.items() if label not in self.analysed):
            return True
        for count, path in enumerate(self._configurations()):
            if count > _MOST_FILES:
                return True
            try:
                if path.stat().st_size <= _LARGEST and word.search(path.read_bytes()):
                    return True
            except OSError:
                return True
        return False

    def _configurations(self) -> Iterator[Path]:
        for folder, folders, names in os.walk(self.root):
            folders[:] = [name for name in folders if not name.startswith(".") and name not in ("node_modules", "__pycache__")]
            yield from (Path(folder, name) for name in names if name.endswith(_ENDINGS) or "." not in name)
