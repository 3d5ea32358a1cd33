"""Which file an import leads to: dotted module names resolved against the files of the repository."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property

from ..text.links import other_paths


def module_parts(path: str) -> tuple[str, ...]:
    """``src/pkg/train.py`` → ``("src", "pkg", "train")``; a package's ``__init__`` stands for the package."""
    parts = path.removesuffix(".py").split("/")
    if parts[-1] == "__init__":
        parts.pop()
    return tuple(part for part in parts if part not in ("", "."))


class ModuleTable:
    """Finds the file of a dotted name as seen from another file.

    A repository may be imported from its root, from a ``src`` folder or from a script's own folder, so a name is
    looked up from the importing file's folder upwards, and last by its ending if only one file has it. Names of the
    standard library, and torch, are its own but beside a script and in a folder that may be on the import path: no package.
    """

    def __init__(self, paths: Iterable[str]) -> None:
        self.files: dict[tuple[str, ...], int] = {}
        self.endings: dict[tuple[str, ...], list[int]] = {}
        self.parts: list[tuple[str, ...]] = []
        self.packages: list[tuple[str, ...]] = []
        for index, path in enumerate(paths):
            parts = module_parts(path)
            self.parts.append(parts)
            is_package = path.endswith("__init__.py")
            self.packages.append(parts if is_package else parts[:-1])
            self.files.setdefault(parts, index)
            for start in range(1, len(parts)):
                self.endings.setdefault(parts[start:], []).append(index)
        self._linked: dict[tuple[str, ...], int] = {}
        """Files by other names, which symbolic links give them."""
        self._initialized: set[tuple[str, ...]] = set()
        """Packages with an ``__init__`` that is none of these files, as empty ones are."""
        self._present = set(self.files)
        """The modules of all files of the repository, also of those that are none of these."""
        self.root_name: tuple[str, ...] = ()
        """What the repository's own folder is called, with those around it, where its files import each other through it."""
        self.folders = {parts[:end] for parts in self.files for end in range(1, len(parts) + 1)}

    def absolute(self, importer: int, module: str) -> tuple[str, ...]:
        """The dotted parts that a module string names, relative dots resolved."""
        dots = len(module) - len(module.lstrip("."))
        rest = tuple(part for part in module[dots:].split(".") if part)
        if not dots:
            return rest
        package = self.packages[importer]
        return package[: len(package) - (dots - 1)] + rest

    def add_packages(self, paths: Iterable[str]) -> None:
        """Tells of all files of the repository, also of those that are not read, as an empty ``__init__`` is."""
        for path in paths:
            if path.endswith(".py"):
                self._present.add(module_parts(path))
            if path.endswith("__init__.py"):
                self._initialized.add(module_parts(path))

    def add_links(self, links: Mapping[str, str], paths: Sequence[str]) -> None:
        """Tells of symbolic links: whoever looks for one finds the file that it leads to."""
        indices = {path: index for index, path in enumerate(paths)}
        for link, path in other_paths(links, indices):
            parts = module_parts(link)
            if parts not in self.files:
                self._linked[parts] = indices[path]
            self.folders |= {parts[:end] for end in range(1, len(parts) + 1)}

    def name_root(self, imports: Iterable[tuple[int, str, str | None]]) -> None:
        """Finds out what the root folder is called, from all (file, module, name) that are imported.

        `import mae_st.util.misc` beside `util/misc.py`: whoever runs it has the folder around `mae_st` on the path, or one
        further up (`import vision.fair.mvit.util.misc`). Names are the root's if all that is imported below the first of
        them, and more than one thing, is there.
        """
        below: dict[str, set[tuple[str, ...]]] = {}
        others: set[str] = set()
        for importer, module, name in imports:
            first, *rest = module.split(".")
            if not first or first in others or (not rest and name is None):
                continue
            if first in sys.stdlib_module_names or self.find(importer, module) is not None:
                others.add(first)
            below.setdefault(first, set()).add((first, *rest, name or ""))
        found = [self._root_of(imported) for first, imported in below.items() if first not in others and len(imported) > 1]
        names = sorted(names for names in found if names)
        self.root_name = names[0] if len(names) == 1 else ()

    def _root_of(self, imported: set[tuple[str, ...]]) -> tuple[str, ...]:
        """The fewest first parts, the same for all that is imported, without which all of it is there; () if none are."""
        shared = _shared_by_all(imported)
        for count in range(1, len(shared) + 1):
            rests = [parts[count:] for parts in imported]
            if all(rest[:-1] in self._present or rest in self._present for rest in rests):
                return shared[:count]
        return ()

    @cached_property
    def _files_and_links(self) -> dict[tuple[str, ...], int]:
        return self._linked | self.files

    def _is_package(self, folder: tuple[str, ...]) -> bool:
        if folder in self._initialized:
            return True
        index = self.files.get(folder)
        return index is not None and self.packages[index] == folder

    def find(self, importer: int, module: str, by_links: bool = True) -> int | None:
        """Index of the file that ``import module`` reads in the file ``importer``; None if it is not ours.

        Without ``by_links``, symbolic links are no files.
        """
        named = self._files_and_links if by_links else self.files
        parts = self.absolute(importer, module)
        if not parts:
            return None
        if module.startswith("."):
            return named.get(parts)
        folder = self.parts[importer][:-1]
        standard = parts[0] in sys.stdlib_module_names or parts[0] == "torch"
        inside: int | None = None
        for depth in range(len(folder), -1, -1):
            found = named.get(folder[:depth] + parts)
            if found is None or found == importer:
                continue
            is_beside = depth == len(folder) and not standard  # `trainer/torch.py` is not what `trainer/loop.py` imports
            if is_beside or not self._is_package(folder[:depth]):
                return found
            inside = found if inside is None else inside  # packages are not where absolute imports begin, as a rule
        if inside is not None and not standard:
            return inside
        if self.root_name and parts[: len(self.root_name)] == self.root_name and parts[len(self.root_name) :] in self.files:
            return self.files[parts[len(self.root_name) :]]
        endings = () if standard else self.endings.get(parts, ())
        if endings and (len(parts) > 1 or len(endings) == 1):
            return min(endings, key=lambda index: (-_shared(self.parts[index], folder), len(self.parts[index]), index))
        return None


def _shared(left: tuple[str, ...], right: tuple[str, ...]) -> int:
    count = 0
    for a, b in zip(left, right, strict=False):
        if a != b:
            break
        count += 1
    return count


def _shared_by_all(names: Iterable[tuple[str, ...]]) -> tuple[str, ...]:
    first, *others = names
    return first[: min((_shared(first, other) for other in others), default=len(first))]
