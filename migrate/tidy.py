"""`apply --tidy`: helpers that no code uses any more are taken out of their modules, and out of the imports of them."""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass

from ..transforms.findings import UserError
from ..transforms.rewrites.helper_place import features_left_out, held_names, is_untouched, module_text
from ..transforms.rewrites.helper_source import definitions
from ..transforms.text.generated import HELPER_MODULE, is_generated, is_helper_module
from ..transforms.text.source import Source
from .diff import file_patch
from .mentions import Mentions
from .pipeline import Migration
from .report import Report
from .writer import Change

_WIDEST = 100


def take_out_unused(migration: Migration, report: Report) -> None:
    """Add what `--tidy` changes to a migration and its report. Modules that somebody has changed are theirs and stay."""
    workspace = migration.workspace
    if workspace.root not in workspace.paths:
        raise UserError(f"--tidy has to see all that may use a helper: run it in {workspace.root}, without a path")
    changes = {change.label: change for change in migration.changes}
    texts = {label: text for label in workspace.files if (text := _text(migration, label, changes.get(label))) is not None}
    modules = {label: text for label, text in texts.items() if is_helper_module(label) and is_generated(text)}
    users = {label: text for label, text in texts.items() if label not in modules and HELPER_MODULE in text}
    mentions = Mentions(workspace.root, {label: change.new for label, change in changes.items()})
    importers = {label: importer for label, text in users.items() if (importer := _importer(label, text)) is not None}
    names = {name for one in importers.values() for name in one.bound} | definitions().keys()
    untouched = {label for label, text in modules.items() if is_untouched(text)}
    elsewhere = mentions.of(names, {*untouched, *importers}).union(*(one.taken for one in importers.values()))
    if mentions.problem:
        report.notes.append(f"--tidy takes nothing out, as a helper may be used out of sight: {mentions.problem}")
    wanted = set(elsewhere)
    for label, importer in importers.items():
        users[label], kept = _without_unused(importer, elsewhere)
        wanted |= kept | importer.words
    for label, text in modules.items():
        held = held_names(text)
        if label not in untouched or not held:
            continue
        if not held & wanted:
            report.notes.append(f"nothing uses {workspace.display(label)} any more: delete it")
        users[label] = module_text(held & wanted, features_left_out(text)) if held & wanted else text
    for label, text in sorted(users.items()):
        if text != texts[label]:
            path, data = workspace.path(label), workspace.read(label) if workspace.path(label).is_file() else None
            new = Source.decode(label, data).encode(text) if data is not None else text.encode()
            changes[label] = Change(label, path, data, new)
    migration.changes = list(changes.values())
    report.patches = [(workspace.display(one.label), file_patch(one.label, one.old, one.new)) for one in migration.changes]


def _text(migration: Migration, label: str, change: Change | None) -> str | None:
    try:
        data = change.new if change is not None else migration.workspace.read(label)
        return Source.decode(label, data).text if HELPER_MODULE.encode() in data or is_helper_module(label) else None
    except (OSError, SyntaxError, ValueError, RecursionError):
        return None


@dataclass(frozen=True)
class _Importer:
    """A file that imports helpers at its top."""

    text: str
    imports: list[ast.ImportFrom]
    words: frozenset[str]
    """All that it says elsewhere."""
    bound: frozenset[str]
    """The names that helpers have in it."""
    taken: frozenset[str]
    """Names that it may have from other files than modules of helpers."""
    hands_on: bool
    """Whether it is a package, from which others import what it imports."""


def _importer(label: str, text: str) -> _Importer | None:
    """What there is to know of a file; None where it cannot be parsed or imports no helpers at its top."""
    try:
        tree = ast.parse(text)
        imports = list(_imports(tree))
    except (SyntaxError, ValueError, RecursionError):
        return None
    if not imports:
        return None
    lines = enumerate(text.splitlines(), 1)
    others = [line for number, line in lines if not any(i.lineno <= number <= (i.end_lineno or 0) for i in imports)]
    words = frozenset(re.findall(r"\w+", "\n".join(others)))
    bound = frozenset(alias.asname or alias.name for node in imports for alias in node.names) - {"*"}
    taken = (words - bound) | _said_of_others(tree, imports)
    return _Importer(text, imports, words, bound, taken, label.endswith("__init__.py"))


def _said_of_others(tree: ast.Module, imports: list[ast.ImportFrom]) -> set[str]:
    """The words of attributes, strings and other imports: what an attribute of another module may be called by."""
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            found.add(node.attr)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            found.update(re.findall(r"\w+", node.value))
        elif isinstance(node, (ast.Import, ast.ImportFrom)) and node not in imports:
            found.update(word for alias in node.names for word in alias.name.split("."))
    return found


def _without_unused(importer: _Importer, elsewhere: Collection[str]) -> tuple[str, set[str]]:
    """A file without the names that it imports of helpers and nothing mentions, and the helpers that it still imports."""
    lines = importer.text.splitlines(keepends=True)
    wanted: set[str] = set()
    for node in reversed(importer.imports):
        used = importer.words.union(elsewhere)
        kept = [alias for alias in node.names if importer.hands_on or (alias.asname or alias.name) in used]
        if any(alias.name == "*" for alias in node.names):
            kept = node.names
            wanted |= definitions().keys()
        if len(kept) < len(node.names) and not _replace(lines, node, kept):
            kept = node.names
        wanted |= {alias.name for alias in kept}
    return "".join(lines), wanted


def _imports(tree: ast.Module) -> Iterator[ast.ImportFrom]:
    """The imports of helpers at the top of a module."""
    for node in tree.body:
        if isinstance(node, ast.ImportFrom) and (node.module or "").rpartition(".")[2] == HELPER_MODULE:
            yield node


def _replace(lines: list[str], node: ast.ImportFrom, kept: list[ast.alias]) -> bool:
    """Write an import with these names alone, unless something else stands on its lines."""
    first, last = node.lineno - 1, (node.end_lineno or node.lineno) - 1
    written = "".join(lines[first : last + 1])
    if "#" in written or ";" in written:
        return False
    end = written[len(written.rstrip("\r\n")) :]
    names = [alias.name + (f" as {alias.asname}" if alias.asname else "") for alias in kept]
    start = f"from {'.' * node.level}{node.module} import "
    line = start + ", ".join(names)
    if not kept:
        lines[first : last + 1] = []
    elif len(line) <= _WIDEST:
        lines[first : last + 1] = [line + end]
    else:
        lines[first : last + 1] = [f"{start}({end}", *(f"    {name},{end}" for name in names), f"){end}"]
    return True
