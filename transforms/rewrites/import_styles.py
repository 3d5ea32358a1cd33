"""How the files of a repository import each other: by which names a file can reach a module in which folder."""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import PurePosixPath

from ..queries.names_at_run_time import imports_by_name
from ..queries.packages import is_beside_package
from ..queries.program import Program
from ..text.generated import HELPER_MODULE
from .unread_imports import UnreadImports


@dataclass(frozen=True)
class ImportStyle:
    """How a file imports its siblings.

    ``root`` is the folder that its absolute imports of the repository start from, ``package`` the outermost folder that
    its relative ones can reach; None for what it does not use.
    """

    folder: PurePosixPath
    root: PurePosixPath | None
    package: PurePosixPath | None
    known: frozenset[PurePosixPath] = frozenset()
    """Outermost packages that the file, or one of its own package, imports from by absolute names."""
    imported: frozenset[PurePosixPath] = frozenset()
    """The folders of all that the file itself imports by absolute names."""
    running: frozenset[PurePosixPath] = frozenset()
    """Packages elsewhere whose `__init__` imports more, and would do so for the first time if the file imported from them."""
    entangled: frozenset[PurePosixPath] = frozenset()
    """Packages that import the file while they are imported themselves."""
    above: tuple[str, ...] = ()
    """What the root folder itself is called where the file imports through it."""
    is_script: bool = False
    """Whether the file is run by its path, which puts its own folder, and maybe no other, on Python's path."""

    @property
    def reachable(self) -> frozenset[PurePosixPath]:
        """Folders elsewhere that the file can import from."""
        return self.known if self.root is None else self.known | {self.root}

    def spelling(self, folder: PurePosixPath) -> str | None:
        """How the file names the helper module in a folder; None if it cannot import it from there."""
        if self.is_script and folder == self.folder:
            return HELPER_MODULE
        if self._is_near(folder):
            dots = "." * (1 + len(self.folder.parts) - len(folder.parts))
            return f"{dots}{HELPER_MODULE}"
        if self.root is not None and folder.is_relative_to(self.root):
            parts = folder.relative_to(self.root).parts
            if all(part.isidentifier() for part in parts):
                return ".".join((*self.above, *parts, HELPER_MODULE))
        return None

    def is_strange(self, folder: PurePosixPath) -> bool:
        """Whether an import from there would be the first of its kind: of a package not imported before, or in a circle."""
        around = {folder, *folder.parents}
        if not around.isdisjoint(self.entangled) or not around.isdisjoint(self.running):
            return True
        if any(is_beside_package(part.name) and not self.folder.is_relative_to(part) for part in (folder, *folder.parents)):
            return True
        if self._is_near(folder):
            return False
        if folder == self.root:
            return self.folder != folder and folder not in self.known
        return around.isdisjoint(self.known - {self.root})

    def _is_near(self, folder: PurePosixPath) -> bool:
        return self.package is not None and folder.is_relative_to(self.package) and self.folder.is_relative_to(folder)


class ImportStyles:
    """The styles of a repository's files, read off their imports of each other."""

    def __init__(self, program: Program) -> None:
        self.program = program

    def of(self, path: str) -> ImportStyle:
        """Read off the imports of a file that lead to others of the repository, else off those of it, else off its place."""
        index = self.program.index(path)
        folder = PurePosixPath(path).parent
        roots, package = self._seen_from(index, set())
        if not roots and package is None and str(folder / "__init__.py") in self.program.paths:
            if not self.program.facts[index].is_run:
                package = _package_of(folder, self.program.paths)
        around = [r for r in roots if folder.is_relative_to(r)]
        if folder in around and self.program.facts[index].is_run:  # which also imports the package
            root = folder
        else:
            root = max(around, key=lambda r: (around.count(r), len(r.parts))) if around else min(roots, key=_depth, default=None)
        imported_as = self._imported_as(index)
        if imported_as is not None and self.program.facts[index].is_run:
            root = imported_as.parent
        elif package is None:
            package = imported_as
        if root is None and package is None:
            root = folder
        imported = frozenset(PurePosixPath(self.program.facts[target].path).parent for _, target in self._targets[index])
        names = self.program.flow.modules.root_name
        of_root = ".".join((*names, ""))
        is_named = root == PurePosixPath() and any(f"{module}.".startswith(of_root) for module, _ in self._targets[index])
        above = names if is_named else ()
        entered = {above for one in (folder, *imported) for above in (one, *one.parents)}
        running = frozenset(self._running) - entered
        return ImportStyle(
            folder, root, package, self._known(index, root), imported, running, self._entangled(index), above,
            is_script=self._is_script(index, imported),
        )  # fmt: skip

    def _is_script(self, index: int, imported: Collection[PurePosixPath]) -> bool:
        """Whether nothing shows that a file which is run is a module of a package: no import, nor ``-m tools.train``."""
        path = PurePosixPath(self.program.facts[index].path)
        if not self.program.facts[index].is_run or self._importers[index]:
            return False
        if str(path.parent / "__init__.py") in self.program.paths:
            return False
        if any(folder.is_relative_to(path.parent) for folder in imported) or any(map(_dots, self._modules(index))):
            return False
        beside = (i for i, facts in enumerate(self.program.facts) if PurePosixPath(facts.path).parent == path.parent)
        if any("." in name and not _dots(name) for i in beside for _, name in self._importers[i]):
            return False  # its folder is part of a package, by what others import from there
        return not self.program.is_said(".".join(path.with_suffix("").parts))

    @cached_property
    def _unread(self) -> UnreadImports:
        return UnreadImports(self.program)

    @cached_property
    def _running(self) -> list[PurePosixPath]:
        """The packages whose `__init__` imports something."""
        inits = (facts for facts in self.program.facts if facts.path.endswith("/__init__.py") and (facts.imports or facts.stars))
        return [PurePosixPath(facts.path).parent for facts in inits]

    def _imported_as(self, index: int) -> PurePosixPath | None:
        """The outermost package that a file lies in by the absolute names under which all who import it do so."""
        path = self.program.facts[index].path
        names = [name for _, name in self._importers[index] if not _dots(name)]
        if not self._importers[index]:
            names = self._unread.names_of(path)
        if not names or path.endswith("__init__.py") or not all("." in name for name in names):
            return None
        root = min((_root_of(path, name) for name in names), key=_depth)
        return _outermost(PurePosixPath(path), root)

    def _seen_from(self, index: int, seen: set[int]) -> tuple[list[PurePosixPath], PurePosixPath | None]:
        """The roots of a file's absolute imports, and the outermost package that its relative ones show it to be in.

        A file that imports nothing by an absolute name is what those that import it take it for.
        """
        seen.add(index)
        facts = self.program.facts[index]
        folder = PurePosixPath(facts.path).parent
        roots = [_root_of(self.program.facts[target].path, name) for name, target in self._targets[index]]
        names = self._modules(index)
        lies_bare = bool(self._importers[index]) and all("." not in name for _, name in self._importers[index])
        if facts.is_run or lies_bare:  # a relative import that leads nowhere may be left from where the code came from
            names = (name for name, _ in self._imports[index])
        highest = max(map(_dots, names), default=0)
        package = _package_of(folder, self.program.paths) if highest else None
        if package is not None and highest > 1:
            package = min(package, [folder, *folder.parents][highest - 1], key=lambda p: len(p.parts))
        if roots:
            return roots, package
        for importer, name in self._importers[index]:
            above = PurePosixPath(self.program.facts[importer].path).parent
            if not _dots(name):
                roots.append(_root_of(facts.path, name))
                continue
            outer = [above, *above.parents][_dots(name) - 1]
            package = min(package or outer, outer, key=lambda p: len(p.parts))
            if importer not in seen:
                roots += self._seen_from(importer, seen)[0]
        return roots, package

    def _modules(self, index: int) -> Iterator[str]:
        facts = self.program.facts[index]
        yield from (item.module for item in facts.imports)
        yield from facts.stars

    @cached_property
    def _targets(self) -> list[list[tuple[str, int]]]:
        """For each file the files of the repository that it imports by absolute names, with these names."""
        return [[(n, t) for n, t in found if not _dots(n)] for found in self._imports]

    @cached_property
    def _imports(self) -> list[list[tuple[str, int]]]:
        find, found = self.program.flow.modules.find, []
        for index, facts in enumerate(self.program.facts):
            names = dict.fromkeys(self._modules(index))
            if not facts.is_run:  # beside a module that is imported, `logging` is the standard library's
                names = {name: None for name in names if name.partition(".")[0] not in sys.stdlib_module_names}
            for item in facts.imports:  # a module itself, it may be
                if item.name is not None:
                    names[f"{item.module}.{item.name}" if item.module.strip(".") else f"{item.module}{item.name}"] = None
            targets = ((name, find(index, name, by_links=False)) for name in names)  # a link tells nothing of what is on the path
            pairs = [(name, target) for name, target in targets if target is not None and target != index]
            pairs = [(name, target) for name, target in pairs if _dots(name) or self._is_on_path(facts.path, name, target)]
            pairs += [(f".{PurePosixPath(path).stem}", self.program.index(path)) for path in self._scanned(facts.path)]
            found.append(pairs)
        return found

    def _is_on_path(self, importer: str, name: str, target: int) -> bool:
        """Whether a name may lead to a file, and not to a package from elsewhere that is called like a folder far away."""
        root = _root_of(self.program.facts[target].path, name)
        return len(root.parts) <= 1 or PurePosixPath(importer).is_relative_to(root)

    def _scanned(self, path: str) -> list[str]:
        """What the ``__init__`` of a package imports that imports whatever lies in its folder, by names at run time."""
        folder = PurePosixPath(path).parent
        if not path.endswith("__init__.py") or not imports_by_name(self.program, self.program.text(path)):
            return []
        return [facts.path for facts in self.program.facts if PurePosixPath(facts.path).parent == folder and facts.path != path]

    @cached_property
    def _importers(self) -> list[list[tuple[int, str]]]:
        found: list[list[tuple[int, str]]] = [[] for _ in self.program.facts]
        for importer, imports in enumerate(self._imports):
            for name, target in imports:
                found[target].append((importer, name))
        return found

    def _known(self, index: int, root: PurePosixPath | None) -> frozenset[PurePosixPath]:
        """The outermost folders, below the root, that are imported from in the file's own outermost folder."""
        if root is None:
            return frozenset()
        own = _outermost(PurePosixPath(self.program.facts[index].path), root)
        found = {root / name.partition(".")[0] for _, name in self._importers[index] if not _dots(name)} if own != root else set()
        for other, facts in enumerate(self.program.facts):
            path = PurePosixPath(facts.path)
            if other == index or (own != root and path.is_relative_to(own)):
                for name, target in self._targets[other]:
                    target_path = PurePosixPath(self.program.facts[target].path)
                    if _root_of(str(target_path), name) == root:
                        found.add(_outermost(target_path, root))
        return frozenset(found)

    def _entangled(self, index: int) -> frozenset[PurePosixPath]:
        """The packages whose ``__init__`` leads to a file, but for those that the file lies in or imports as it is."""
        folder = PurePosixPath(self.program.facts[index].path).parent
        reaching, waiting = {index}, [index]
        while waiting:
            for importer, _ in self._importers[waiting.pop()]:
                if importer not in reaching:
                    reaching.add(importer)
                    waiting.append(importer)
        paths = (PurePosixPath(self.program.facts[i].path) for i in reaching)
        packages = {p.parent for p in paths if p.name == "__init__.py" and not folder.is_relative_to(p.parent)}
        imported = [PurePosixPath(self.program.facts[target].path) for _, target in self._imports[index]]
        return frozenset(p for p in packages if not any(path.is_relative_to(p) for path in imported))


def _outermost(path: PurePosixPath, root: PurePosixPath) -> PurePosixPath:
    """The folder right below a root that a file lies in; the root itself for one that lies there."""
    if not path.is_relative_to(root):
        return root
    parts = path.relative_to(root).parts
    return root / parts[0] if len(parts) > 1 else root


def _depth(folder: PurePosixPath) -> int:
    return len(folder.parts)


def _dots(name: str) -> int:
    return len(name) - len(name.lstrip("."))


def _root_of(path: str, name: str) -> PurePosixPath:
    """The folder that a dotted name leads to a file from."""
    target = PurePosixPath(path)
    depth = len(name.split(".")) + (1 if target.name == "__init__.py" else 0)
    return target.parents[depth - 1] if depth <= len(target.parents) else PurePosixPath()


def _package_of(folder: PurePosixPath, paths: Collection[str]) -> PurePosixPath:
    """The outermost package that a folder lies in; the folder itself where nothing shows that it is one."""
    while str(folder.parent / "__init__.py") in paths and folder.parent != folder:
        folder = folder.parent
    return folder
