"""Which programs are migrated: all, but for what the user asked for.

Programs that share a file with a finding are chosen together: half of what they share would be wrong for one of them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from .findings import Level


class Selection:
    """Programs, by entry point, in the sets that are chosen together. ``programs`` gives those of each file."""

    def __init__(self, programs: Mapping[str, Iterable[str]]) -> None:
        self._programs = {path: tuple(entries) for path, entries in programs.items()}
        self._representative: dict[str, str] = {}
        for entries in self._programs.values():
            first = self._find(entries[0])
            for entry in entries[1:]:
                self._representative[self._find(entry)] = first

    def beside(self, paths: Iterable[str]) -> frozenset[str]:
        """All files that are chosen together with any of these."""
        chosen = {self._set_of(path) for path in paths}
        return frozenset(path for path in self._programs if self._set_of(path) in chosen)

    def _set_of(self, path: str) -> str:
        return self._find(self._programs[path][0])

    def _find(self, entry: str) -> str:
        while (above := self._representative.get(entry, entry)) != entry:
            entry = above
        return entry


def named(rule: str, ids: Iterable[str]) -> bool:
    """Whether a rule is among ids or families (``FS4``) of rules."""
    return any(rule.startswith(name) for name in ids)


def outside(
    rules: Collection[tuple[str, str]], selection: Selection, select: Collection[str], ignore: Collection[str]
) -> frozenset[str]:
    """The files that the user's choice of rules leaves out; ``rules`` are pairs of a file and a rule that speaks there."""
    everything = {path for path, _ in rules}
    chosen = selection.beside({path for path, rule in rules if not select or named(rule, select)})
    ignored = selection.beside({path for path, rule in rules if named(rule, ignore)})
    return frozenset(everything - chosen) | ignored


def above(levels: Collection[tuple[str, Level]], selection: Selection, highest: Level) -> frozenset[str]:
    """The files of programs with anything above a level; ``levels`` are pairs of a file and a level that it holds."""
    return selection.beside({path for path, level in levels if level.rank > highest.rank})
