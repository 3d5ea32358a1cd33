"""What files import that are not read: of a huge repository, those that no model comes to."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import PurePosixPath

from ..queries.program import Program

_IMPORT = re.compile(r"(?m)^[ \t]*(?:from[ \t]+([.\w]+)[ \t]+import[ \t]*(\([^)]*\)|[^#\n]+)|import[ \t]+([^#\n]+))")


class UnreadImports:
    """Answers for one repository; the texts are looked through once."""

    def __init__(self, program: Program) -> None:
        read = {facts.path for facts in program.facts}
        self._importers: dict[str, list[tuple[PurePosixPath, str]]] = {}
        for path, text in program.all_texts.items() if len(read) < len(program.all_texts) else ():
            for name in () if path in read else _names(text):
                self._importers.setdefault(name.rpartition(".")[2], []).append((PurePosixPath(path), name))

    def names_of(self, path: str) -> list[str]:
        """The absolute names under which such files import a module, as far as the names fit where both lie."""
        module = PurePosixPath(path).with_suffix("")
        found = []
        for importer, name in self._importers.get(module.name, ()):
            parts = tuple(name.split("."))
            fits = module.parts[-len(parts) :] == parts
            if fits and importer.is_relative_to(PurePosixPath(*module.parts[: -len(parts)])):
                found.append(name)
        return found


def _names(text: str) -> Iterator[str]:
    """Modules, and what may be modules, that a text imports by absolute names."""
    for module, names, modules in _IMPORT.findall(text):
        if module and not module.startswith("."):
            yield module
            yield from (f"{module}.{name.split()[0]}" for name in names.strip("() \n").split(",") if name.split())
        yield from (name.split()[0] for name in modules.split(",") if name.split())
