"""A program as refactorings see it: its files, which of them refer to each other, and new names."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path, PurePosixPath
from random import Random

import libcst as cst

from .code import Code, last_name, parsed

WRAPPERS = {"FullyShardedDataParallel": "module", "DistributedDataParallel": "module"}


@dataclass(frozen=True)
class Project:
    """The Python files of a program by POSIX path, and the scripts that are started."""

    files: Mapping[str, str]
    scripts: frozenset[str]
    order: dict[str, Code] = field(default_factory=dict, compare=False, repr=False)

    @staticmethod
    def read(folder: Path, scripts: frozenset[str]) -> Project:
        paths = (path for path in sorted(folder.rglob("*.py")) if "__pycache__" not in path.parts)
        return Project({path.relative_to(folder).as_posix(): path.read_text() for path in paths}, scripts)

    def write(self, folder: Path) -> None:
        for path, text in self.files.items():
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_text(text)

    def code(self, path: str) -> Code:
        return parsed(self.files[path])

    def codes(self) -> Iterator[tuple[str, Code]]:
        for path in self.files:
            yield path, self.code(path)

    def changed(self, files: Mapping[str, str]) -> Project:
        return replace(self, files={**self.files, **files}, order={})

    @cached_property
    def words(self) -> set[str]:
        """All names, texts and modules of the program."""
        stems = {part for path in self.files for part in PurePosixPath(path).with_suffix("").parts}
        return stems.union(*(code.words for _, code in self.codes()))

    def fresh(self, rng: Random, *wanted: str) -> str:
        """A name that the program does not have, one of these or like one of them."""
        free = [name for name in wanted if name not in self.words]
        if free:
            return rng.choice(free)
        base, number = rng.choice(wanted), 2
        while f"{base}{number}" in self.words:
            number += 1
        return f"{base}{number}"

    def module_names(self, path: str, importer: str) -> set[str]:
        """The dotted names under which `importer` may import a file: from the script's folder, or relative."""
        parts = PurePosixPath(path).with_suffix("").parts
        parts = parts[:-1] if parts[-1] == "__init__" else parts
        found = {".".join(parts)}
        around = PurePosixPath(importer).parent.parts
        for dots in range(1, len(around) + 1):
            package = around[: len(around) - dots + 1]
            if package and parts[: len(package)] == package:
                found.add("." * dots + ".".join(parts[len(package) :]))
        return found

    def references(self, path: str, name: str) -> list[tuple[str, cst.BaseExpression]] | None:
        """All expressions that stand for what a file binds to a name at its top, by file; None where that is not sure.

        It is not where a function binds the name too, where a file imports it on from another one, or a text holds it.
        """
        found: list[tuple[str, cst.BaseExpression]] = []
        for other, code in self.codes():
            if name in code.texts:
                return None
            own, modules = {name} if other == path else set[str](), set[str]()
            for imported in code.find(cst.ImportFrom, cst.Import):
                for module, alias, bound in imported_names(imported):
                    if module in self.module_names(path, other):
                        if alias == "*":
                            return None
                        if alias == name:
                            own.add(bound)
                        elif not alias:
                            modules.add(bound)
                    elif alias and join(module, alias) in self.module_names(path, other):
                        modules.add(bound)
                    elif alias == name and self.is_own(module, other):
                        return None
            if (own | {module.split(".")[0] for module in modules}) & code.rebound_in_functions:
                return None
            found += [(other, node) for node in code.variables() if node.value in own]
            attributes = (node for node in code.find(cst.Attribute) if node.attr.value == name)
            found += [(other, node) for node in attributes if code.text(node.value) in modules]
        return found

    def imports(self, importer: str, path: str, name: str) -> bool:
        """Whether a file imports a name from another one."""
        modules = self.module_names(path, importer)
        found = (one for node in self.code(importer).find(cst.ImportFrom) for one in imported_names(node))
        return any(module in modules and alias in (name, "*") for module, alias, _ in found)

    def calls(self, path: str, name: str) -> list[tuple[str, cst.Call]] | None:
        """All calls of a function at the top of a file; None where it is also used in another way, or is not bound just once."""
        code = self.code(path)
        uses = self.references(path, name)
        if uses is None or any(code.stored(node) for node in code.variables(name=name) if not code.function(node)):
            return None
        if len([node for node in code.module.body if isinstance(node, cst.FunctionDef) and node.name.value == name]) != 1:
            return None
        found: list[tuple[str, cst.Call]] = []
        for other, use in uses:
            call = self.code(other).parents[use]
            if not isinstance(call, cst.Call) or call.func is not use or any(arg.star for arg in call.args):
                return None
            found.append((other, call))
        return found

    def is_own(self, module: str, importer: str) -> bool:
        """Whether a dotted name is a file of the program."""
        return any(module in self.module_names(path, importer) for path in self.files)

    def wrapper_names(self, path: str) -> set[str]:
        """Names of a file, or of its attributes, that are the old wrappers."""
        code = self.code(path)
        found = set(WRAPPERS)
        for imported in code.find(cst.ImportFrom):
            found |= {bound for _, alias, bound in imported_names(imported) if alias in WRAPPERS}
        return found

    def wraps(self, path: str) -> Iterator[cst.Call]:
        """Calls of the old wrappers in a file."""
        names = self.wrapper_names(path)
        for call in self.code(path).find(cst.Call):
            if last_name(call.func) in names:
                yield call


@dataclass(frozen=True)
class Place:
    """Where a refactoring may be done; `near` is the code that it concerns."""

    path: str
    near: str


# What a refactoring does: it yields each place, is sent whether to go there, and returns the program after that; None where it
# turns out that it cannot.
Changes = Generator[Place, bool | None, "Project | None"]
Refactoring = Callable[[Project, Random], Changes]


def imported_names(node: cst.Import | cst.ImportFrom) -> Iterator[tuple[str, str, str]]:
    """(module with its dots, name imported from it or "" for itself, name that is bound) of an import statement."""
    if isinstance(node, cst.Import):
        for alias in node.names:
            module = dotted(alias.name)
            bound = dotted(alias.asname.name) if alias.asname else module
            yield module, "", bound
        return
    module = "." * len(node.relative) + (dotted(node.module) if node.module else "")
    if isinstance(node.names, cst.ImportStar):
        yield module, "*", "*"
        return
    for alias in node.names:
        name = dotted(alias.name)
        yield module, name, dotted(alias.asname.name) if alias.asname else name


def dotted(node: cst.CSTNode) -> str:
    """`a.b.c` of names and attributes; an empty text for another expression."""
    if isinstance(node, cst.Attribute):
        start = dotted(node.value)
        return f"{start}.{node.attr.value}" if start else ""
    return node.value if isinstance(node, cst.Name) else ""


def join(module: str, name: str) -> str:
    return f"{module}{name}" if module.endswith(".") else f"{module}.{name}"

