"""The programs of a repository: the files that are run, each with what it reaches by imports."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from functools import cached_property

from ..facts.facts import FileFacts
from ..flow.values import Wrapped
from .imports_by_name import ImportsByName
from .names_at_run_time import imports_by_name
from .program import Program

_DOTTED = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*")


class Programs:
    """Which programs a file is part of. ``scripts`` are modules that the project installs as commands.

    A program goes by the path of its entry point: a file with an ``if __name__ == "__main__"``, one that works or wraps a
    model at module level, or a command. What none of these reaches (a library, dead code) belongs to the files that
    nobody imports and that lead to it; where such code wraps a model, these count as programs for all that they reach.
    Code of a package (``is_package``) may be imported from outside.
    """

    def __init__(self, program: Program, scripts: Collection[str] = (), is_package: bool = False) -> None:
        self.program = program
        self.scripts = scripts
        self.is_package = is_package
        self._of: dict[int, tuple[str, ...]] = {}
        self._sharing: dict[str, list[str]] = {}
        self._by_name: dict[int, bool] = {}
        self._meeting: dict[tuple[str, str], bool] = {}

    def of(self, path: str) -> tuple[str, ...]:
        """The entry points of the programs that reach a file, sorted."""
        index = self.program.index(path)
        if index not in self._of:
            reaching = self.reaching(index)
            found = reaching & (self.entries | self._run_unseen)
            found = found or {i for i in reaching if not self._importers[i]} or {min(reaching)}
            self._of[index] = tuple(sorted(self.program.facts[i].path for i in found))
        return self._of[index]

    def sharing_entries(self, path: str) -> list[str]:
        """The files that some program reaches which reaches this one too."""
        if path not in self._sharing:
            own = set(self.of(path))
            self._sharing[path] = [file.path for file in self.program.facts if not own.isdisjoint(self.of(file.path))]
        return self._sharing[path]

    def may_meet(self, path: str, other: str) -> bool:
        """Whether some process may run both files, as far as imports by name and code from outside allow to tell."""
        if (path, other) not in self._meeting:
            self._meeting[path, other] = self._may_meet(path, other)
        return self._meeting[path, other]

    def _may_meet(self, path: str, other: str) -> bool:
        own, others = set(self.of(path)), set(self.of(other))
        if not own.isdisjoint(others) or not (self.is_reached(path) and self.is_reached(other)):
            return True
        scripts = own == {path}, others == {other}
        if self.is_package and not any(scripts):
            return True
        by_names = self.program.once(ImportsByName)
        finds = (by_names.may_find_script if is_script else by_names.may_find for is_script in scripts)
        return any(find(file) for find, file in zip(finds, (path, other), strict=True))

    def is_reached(self, path: str) -> bool:
        """Whether a file is run, or imported by one that is."""
        return not self.entries.isdisjoint(map(self.program.index, self.of(path)))

    @cached_property
    def entries(self) -> frozenset[int]:
        """The files that are run, by index."""
        files, flow = self.program.facts, self.program.flow
        found = {i for i, file in enumerate(files) if file.is_run or file.path.rpartition("/")[2] == "__main__.py"}
        for value in flow.values:
            if isinstance(value, Wrapped) and value.site >= 0 and flow.calls[value.site].owner < 0:
                found.add(flow.file_of_call(value.site))
        installed = [path for path in self._modules if any(path == s or path.endswith(f".{s}") for s in self.scripts)]
        return frozenset(found | {self._modules[path] for path in installed})

    @cached_property
    def _run_unseen(self) -> frozenset[int]:
        """The files that nobody imports and that lead to a wrapper which no program reaches: something out of sight runs them."""
        flow = self.program.flow
        wraps = {flow.file_of_call(v.site) for v in flow.values if isinstance(v, Wrapped) and v.site >= 0}
        ways = [reaching for index in wraps if self.entries.isdisjoint(reaching := self.reaching(index))]
        return frozenset(i for reaching in ways for i in reaching if not self._importers[i])

    @cached_property
    def _modules(self) -> dict[str, int]:
        """Every file by its dotted path."""
        return {file.path.removesuffix(".py").replace("/", "."): i for i, file in enumerate(self.program.facts)}

    @cached_property
    def _importers(self) -> list[set[int]]:
        importers: list[set[int]] = [set() for _ in self.program.facts]
        for index, file in enumerate(self.program.facts):
            for target in self._imported(index, file):
                importers[target].add(index)
        return importers

    def _imported(self, index: int, file: FileFacts) -> Iterable[int]:
        find = self.program.flow.modules.find
        modules = {item.module for item in file.imports} | set(file.stars)
        for item in file.imports:
            if item.name is not None:  # a module itself, it may be
                modules.add(f"{item.module}.{item.name}" if item.module.strip(".") else f"{item.module}{item.name}")
        targets = {target for module in modules if (target := find(index, module)) is not None}
        return (targets | set(self._named(index, file))) - {index}

    def _named(self, index: int, file: FileFacts) -> Iterable[int]:
        """The files of what is named in quotes: ``"package.averages.Average"``, as configurations name classes."""
        for _, value in file.constants:
            module, _, name = value.rpartition(".") if isinstance(value, str) else ("", "", "")
            if module and _DOTTED.fullmatch(module) and (target := self.program.flow.modules.find(index, module)) is not None:
                if name in self.program.facts[target].names:
                    yield target

    def imports_by_name(self, index: int) -> bool:
        """Whether a file imports what no import statement shows."""
        if index not in self._by_name:
            self._by_name[index] = imports_by_name(self.program, self.program.text(self.program.facts[index].path))
        return self._by_name[index]

    def reaching(self, index: int) -> set[int]:
        """The files from which imports lead to a file, and itself."""
        reaching, waiting = {index}, [index]
        while waiting:
            for importer in self._importers[waiting.pop()] - reaching:
                reaching.add(importer)
                waiting.append(importer)
        return reaching
