"""`apply --tidy`: helpers that no code uses any more are taken out of their modules, and out of the imports of them."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from ..transforms.findings import UserError
from ..transforms.rewrites.helper_place import features_left_out, held_names, is_untouched, module_text
from ..transforms.rewrites.helper_source import definitions
from ..transforms.text.generated import HELPER_MODULE, is_generated, is_helper_module
from ..transforms.text.source import Source
from .diff import file_patch
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
    wanted: set[str] = set()
    for label, text in users.items():
        users[label], words = _without_unused(label, text)
        wanted |= words
    for notebook in migration.notebooks.values():
        wanted |= set(re.findall(r"\w+", notebook.text))
    for label, text in modules.items():
        held = held_names(text)
        if not is_untouched(text) or not held:
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


def _without_unused(label: str, text: str) -> tuple[str, set[str]]:
    """A file without the names that it imports of helpers and never mentions, and all words that it mentions."""
    try:
        imports = list(_imports(ast.parse(text)))
    except (SyntaxError, ValueError, RecursionError):
        return text, set(re.findall(r"\w+", text))
    lines = text.splitlines(keepends=True)
    others = [line for number, line in enumerate(lines, 1) if not any(i.lineno <= number <= (i.end_lineno or 0) for i in imports)]
    words = set(re.findall(r"\w+", "".join(others)))
    hands_on = label.endswith("__init__.py")  # what a package imports, others import from it
    for node in reversed(imports):
        kept = [alias for alias in node.names if hands_on or alias.name == "*" or (alias.asname or alias.name) in words]
        if any(alias.name == "*" for alias in node.names):
            kept = node.names
            words |= definitions().keys()
        words |= {alias.name for alias in kept}
        if len(kept) < len(node.names):
            _replace(lines, node, kept)
    return "".join(lines), words


def _imports(tree: ast.Module) -> Iterator[ast.ImportFrom]:
    """The imports of helpers at the top of a module."""
    for node in tree.body:
        if isinstance(node, ast.ImportFrom) and (node.module or "").rpartition(".")[2] == HELPER_MODULE:
            yield node


def _replace(lines: list[str], node: ast.ImportFrom, kept: list[ast.alias]) -> None:
    first, last = node.lineno - 1, (node.end_lineno or node.lineno) - 1
    written = "".join(lines[first : last + 1])
    if "#" in written or ";" in written:
        return
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

