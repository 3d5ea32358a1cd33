"""Which files are connected by imports: a scan of the bytes, cheap enough for every file of a repository.

It errs on the side of too many connections (an import in a string counts), never of too few among the
static ones.
"""

from __future__ import annotations

import re
import sys
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping

from ..transforms.text.links import other_paths

# Matched up to the word `import`, which is searched for first: a regex with a literal is far faster than
# one that tries every line.
_FROM = re.compile(rb"(?:^|[;:\s])from\s*([.\w]+)\s*$")
_STATEMENT = re.compile(rb"(?:^|[;:])\s*$")
_NAMES = re.compile(rb"\s*(\((?:[^()#]|#[^\n]*\n)*\)|[^\n;#]*)")
_CALL = re.compile(rb"import(?:_module|__)\s*\(\s*[\"']([.\w]+)[\"']")
_COMMENT = re.compile(rb"#[^\n]*")
_AFTER_IMPORT = (b" ", b"\t", b"\f", b"(", b"*")


def imported_modules(data: bytes, package: str) -> set[str]:
    """Dotted names that a file may import: modules, and names taken from them, which may be modules too.

    `package` is the dotted name of the file's folder. Relative imports give names with a dot in front, from the root.
    """
    if b"\\" in data:
        data = data.replace(b"\\\r\n", b" ").replace(b"\\\n", b" ")
    found: set[str] = set()
    at = data.find(b"import")
    while at != -1:
        line_start = max(data.rfind(b"\n", 0, at), data.rfind(b"\r", 0, at)) + 1
        head = data[line_start:at]
        is_word = data[at + len(b"import") : at + len(b"import") + 1] in _AFTER_IMPORT
        if is_word and (origin := _FROM.search(head)):
            module = _absolute(origin.group(1).decode(errors="replace"), package)
            found.add(module)
            for name in _listed(data, at + len(b"import")):
                if name != "*":
                    found.add(f"{module}.{name}" if module != "." else f".{name}")
        elif is_word and _STATEMENT.search(head):
            for name in _listed(data, at + len(b"import")):
                found.update(_with_parents(name))
        elif call := _CALL.match(data, at):
            found.add(_absolute(call.group(1).decode(errors="replace"), package))
        at = data.find(b"import", at + len(b"import"))
    return found


class Neighbours:
    """Which files import which.

    `imports` maps each file's label to what `imported_modules` found. A module name stands for every file
    whose path ends with it, since any folder may be on the import path; one of none, for the file that bears it from the
    root on but for the first name, which the root folder may have. A name of the standard library is its own but beside
    a script and in folders above that are no packages.
    """

    def __init__(self, imports: Mapping[str, set[str]], links: Mapping[str, str] | None = None) -> None:
        files_by_module = _files_by_module({label: label for label in imports} | dict(other_paths(links or {}, imports)))
        self._imported: dict[str, set[str]] = defaultdict(set)
        self._importers: dict[str, set[str]] = defaultdict(set)
        for label, modules in imports.items():
            for module in modules:
                others = files_by_module.get(module, ())
                if not others:  # the first name may be that of the root folder itself
                    others = files_by_module.get("." + module.partition(".")[2], ())
                if others and module.partition(".")[0] in sys.stdlib_module_names:
                    others = [other for other in others if _shadows(other, module, label, imports)]
                for other in others:
                    self._imported[label].add(other)
                    self._importers[other].add(label)

    def imported_by(self, label: str) -> set[str]:
        """The files that a file imports."""
        return self._imported.get(label, set())

    def importers_of(self, label: str) -> set[str]:
        """The files that import a file."""
        return self._importers.get(label, set())

    def connected(self, hits: Iterable[str]) -> set[str]:
        """The files that imports connect to `hits`, in either direction, over any number of files between."""
        reached = set(hits)
        waiting = list(reached)
        while waiting:
            label = waiting.pop()
            for other in (self.imported_by(label) | self.importers_of(label)) - reached:
                reached.add(other)
                waiting.append(other)
        return reached


def connected(imports: Mapping[str, set[str]], hits: Iterable[str]) -> set[str]:
    """The files that imports connect to `hits`; see `Neighbours`."""
    return Neighbours(imports).connected(hits)


def package_of(label: str) -> str:
    """The dotted name of a file's folder, from the root of the run."""
    return label.rpartition("/")[0].replace("/", ".")


def _files_by_module(names: Mapping[str, str]) -> dict[str, list[str]]:
    table: dict[str, list[str]] = defaultdict(list)
    for name, label in names.items():
        parts = name.removesuffix(".py").split("/")
        if parts[-1] == "__init__":
            parts.pop()
        for start in range(len(parts)):
            table[".".join(parts[start:])].append(label)
        if parts:
            table["." + ".".join(parts)].append(label)
    return table


def _shadows(label: str, module: str, importer: str, labels: Collection[str]) -> bool:
    """Whether a file comes before the module of the standard library that bears its name."""
    path = label.removesuffix("/__init__.py").removesuffix(".py")
    folder = path[: -len(module)]
    own = importer[: importer.rfind("/") + 1]
    return folder == own or (own.startswith(folder) and f"{folder}__init__.py" not in labels)


def _listed(data: bytes, at: int) -> list[str]:
    match = _NAMES.match(data, at)
    if match is None:
        return []
    names = _COMMENT.sub(b"", match.group(1)).strip(b"()").split(b",")
    return [words[0].decode(errors="replace") for name in names if (words := name.split())]


def _absolute(module: str, package: str) -> str:
    name = module.lstrip(".")
    levels = len(module) - len(name)
    if levels == 0:
        return name
    parts = package.split(".") if package else []
    base = parts[: len(parts) - levels + 1] if levels > 1 else parts
    return "." + ".".join([*base, name] if name else base)


def _with_parents(name: str) -> list[str]:
    """`import a.b.c` binds `a` and makes `a.b` reachable through it."""
    parts = name.split(".")
    return [".".join(parts[: length + 1]) for length in range(len(parts))]
