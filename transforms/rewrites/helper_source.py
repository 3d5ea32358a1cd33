"""The helpers as text: which definitions a name needs, and the code that holds them.

``helpers/`` is real Python that is tested as such; here it is read only as text, since it imports torch. A line of it that
ends in ``# needed for: feature, feature`` begins something (a statement, a parameter, an argument) that code without these
features does without: a repository that surely has none of them gets the helper without it. Of a docstring only the first
paragraph is copied, which says what a caller has to know; the others say why it is done so, to those who change it here.
"""

from __future__ import annotations

import ast
import re
import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib.resources import files

BESIDE_CODE = frozenset({"beside_code"})
"""What helpers need that stand in a file with other code."""
_LONGEST = 110
_HELPERS = "HELPERS: tuple[str, ...] = ()"
"""By this definition helpers tell themselves from code that stands beside them."""
_NEEDED_FOR = re.compile(r"  # needed for: (?P<features>[\w.]+(?:, [\w.]+)*)$", re.MULTILINE)
_DROPPED = "\0"
_FOR_CHECKERS = re.compile(r"  # (?:pyright|type|noqa)\b.*$", re.MULTILINE)
"""Comments for the checkers of this repository, which nobody else runs."""


@dataclass(frozen=True)
class Definition:
    """One top-level function, class or constant of a helper file."""

    name: str
    file: str
    order: int
    text: str
    needs: frozenset[str]
    """Names of other definitions that it uses."""
    at_once: frozenset[str]
    """Those among them that its definition itself reads, so that they have to stand above it."""
    imports: frozenset[str]
    """Import statements, one name each, that its names come from."""


@cache
def _texts() -> dict[str, str]:
    """The helper files by name."""
    folder = files(f"{__package__}".rpartition(".")[0]).joinpath("helpers")
    paths = sorted((path for path in folder.iterdir() if path.name.endswith(".py")), key=lambda path: path.name)
    return {path.name: path.read_text(encoding="utf-8") for path in paths if path.name != "__init__.py"}


@cache
def features_by_file() -> dict[str, frozenset[str]]:
    """What some line of a helper is needed for, by the name of the file."""
    found = {file: [m["features"].split(", ") for m in _NEEDED_FOR.finditer(text)] for file, text in _texts().items()}
    return {file: frozenset(feature for features in marks for feature in features) for file, marks in found.items()}


def features_of(names: Iterable[str]) -> frozenset[str]:
    """What some line in the files of these definitions, and of all that they use, is needed for."""
    files_used = {definition.file for definition in with_needs(names)}
    return frozenset[str]().union(*(features_by_file()[file] for file in files_used))


@cache
def definitions(absent: frozenset[str] = frozenset()) -> dict[str, Definition]:
    """All definitions by name, without what is needed only for features that are ``absent``.

    Names are unique over all helper files, since any of them may end up in one file.
    """
    read = [one for file in _texts() for one in _read(file, absent & features_by_file()[file])]
    names = {one.name for one in read}
    assert len(names) == len(read), "two helpers have one name"
    return {
        one.name: replace(one, order=order, needs=(one.needs & names) - {one.name}, at_once=(one.at_once & names) - {one.name})
        for order, one in enumerate(read, 1)
    }


@cache
def _read(file: str, absent: frozenset[str]) -> list[Definition]:
    """The definitions of one file, with all names that they use; most files are the same whatever is absent elsewhere."""
    text = _without(_texts()[file], absent)
    tree = ast.parse(text)
    imports = _imports(tree)
    lines = text.splitlines()
    found: list[Definition] = []
    for node in tree.body:
        for name in defined_names(node):
            used = _names_from_outside(node)
            imported = frozenset(imports[n] for n in used if n in imports)
            at_once = frozenset(_read_at_once(node))
            found.append(Definition(name, file, 0, _text(lines, node), frozenset(used), at_once, imported))
    return found


def with_needs(names: Iterable[str], absent: frozenset[str] = frozenset()) -> list[Definition]:
    """The definitions of these names and of all that they use, in the order of the files; KeyError for unknown names."""
    known = definitions(absent)
    pending, found = list(names), {}
    while pending:
        definition = known[pending.pop()]
        if definition.name not in found:
            found[definition.name] = definition
            pending += definition.needs
    ordered: dict[str, Definition] = {}

    def place(definition: Definition) -> None:
        for name in sorted(definition.at_once):
            place(found[name])
        ordered.setdefault(definition.name, definition)

    for definition in sorted(found.values(), key=lambda definition: definition.order):
        place(definition)
    return list(ordered.values())


def import_lines(needed: Iterable[Definition]) -> list[str]:
    """The import statements that definitions need, names of one module together."""
    plain: set[str] = set()
    by_module: dict[str, set[str]] = {}
    for line in {line for definition in needed for line in definition.imports}:
        if line.startswith("from "):
            module, _, name = line.removeprefix("from ").partition(" import ")
            by_module.setdefault(module, set()).add(name)
        else:
            plain.add(line)
    merged = [_from_import(module, sorted(names)) for module, names in by_module.items()]
    return sorted(plain | set(merged), key=_import_order)


def beside_code(needed: Sequence[Definition]) -> str:
    """The text of definitions, two blank lines between them, for a file with other code."""
    text = "\n\n\n".join(definition.text for definition in needed) + "\n"
    own = [definition.name for definition in needed if re.search(r"^(?:def|class) ", definition.text, re.MULTILINE)]
    listed = textwrap.fill(", ".join(f'"{name}"' for name in own), 106, initial_indent="    ", subsequent_indent="    ")
    return text.replace(_HELPERS, f"HELPERS = (\n{listed},\n)")


def _without(text: str, absent: frozenset[str]) -> str:
    """The text of a helper file without what is needed only for features that are absent, and without the marks."""
    lines = text.split("\n")
    marked = {i: set(m["features"].split(", ")) for i, line in enumerate(lines, 1) if (m := _NEEDED_FOR.search(line))}
    starts = {number for number, features in marked.items() if features <= absent}
    dropped: set[int] = set()
    for node in ast.walk(ast.parse(text)) if starts else ():
        number = getattr(node, "lineno", None)
        if number in starts and number not in dropped:  # what is walked first is outermost
            dropped.update(range(number, (getattr(node, "end_lineno", None) or number) + 1))
    kept = [line for number, line in enumerate(lines, 1) if number not in dropped]
    return _first_paragraphs(_NEEDED_FOR.sub("", "\n".join(kept)))


def _first_paragraphs(text: str) -> str:
    """The text with no more of each docstring than its first paragraph."""
    lines = text.split("\n")
    for node in ast.walk(ast.parse(text)):
        if not isinstance(node, (ast.FunctionDef, ast.ClassDef)) or ast.get_docstring(node) is None:
            continue
        first, last = node.body[0].lineno - 1, (node.body[0].end_lineno or 0) - 1
        end = next((number for number in range(first, last) if not lines[number].strip()), None)
        if end is not None:
            lines[end - 1] += '"""'
            lines[end : last + 1] = [_DROPPED] * (last + 1 - end)
    return "\n".join(line for line in lines if line is not _DROPPED)


def _from_import(module: str, names: list[str]) -> str:
    line = f"from {module} import {', '.join(names)}"
    if len(line) <= _LONGEST:
        return line
    return f"from {module} import (\n" + "".join(f"    {name},\n" for name in names) + ")"


def _import_order(line: str) -> tuple[int, int, str]:
    module = line.split()[1]
    first = 0 if module == "__future__" else 2 if module.startswith("torch") else 1
    return first, line.startswith("from"), module


def defined_names(node: ast.stmt) -> list[str]:
    """The names that a statement at module level defines."""
    if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
        return [node.name]
    if isinstance(node, ast.Assign):
        return [target.id for target in node.targets if isinstance(target, ast.Name) and target.id != "__all__"]
    if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
        return [node.target.id]
    return []


def _names_from_outside(node: ast.stmt) -> set[str]:
    """The names that a definition reads and does not bind itself."""
    names = [n for n in ast.walk(node) if isinstance(n, ast.Name)]
    own = {n.id for n in names if not isinstance(n.ctx, ast.Load)} | {n.arg for n in ast.walk(node) if isinstance(n, ast.arg)}
    return {n.id for n in names} - own


def _read_at_once(node: ast.stmt) -> set[str]:
    """Names that are read when a definition is made, not when it is used."""
    if isinstance(node, ast.FunctionDef):
        read: list[ast.AST] = [*node.decorator_list, *node.args.defaults, *filter(None, node.args.kw_defaults)]
    elif isinstance(node, ast.ClassDef):
        read = [*node.decorator_list, *node.bases]
    else:
        read = [node]
    return {n.id for part in read for n in ast.walk(part) if isinstance(n, ast.Name)}


def _text(lines: list[str], node: ast.stmt) -> str:
    first = min([node.lineno, *(d.lineno for d in getattr(node, "decorator_list", ()))])
    return _FOR_CHECKERS.sub("", "\n".join(lines[first - 1 : node.end_lineno]))


def _imports(tree: ast.Module) -> dict[str, str]:
    """Each imported name with the statement that brings it alone; imports from other helper files are none."""
    found: dict[str, str] = {}
    for node in tree.body:
        for alias in node.names if isinstance(node, (ast.Import, ast.ImportFrom)) else ():
            bound = alias.asname or alias.name.partition(".")[0]
            renamed = f" as {alias.asname}" if alias.asname else ""
            if isinstance(node, ast.Import):
                found[bound] = f"import {alias.name}{renamed}"
            elif isinstance(node, ast.ImportFrom) and not node.level and node.module != "__future__":
                found[bound] = f"from {node.module} import {alias.name}{renamed}"
    return found
