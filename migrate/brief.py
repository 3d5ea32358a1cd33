"""What a migration leaves to do, as a page for whoever does it: each open stop with all that it takes, then what to read."""

from __future__ import annotations

import ast
import difflib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import PurePosixPath

from jinja2 import Environment, PackageLoader, StrictUndefined

from ..transforms.findings import Finding, Level
from ..transforms.rule import Rule, all_rules
from ..transforms.text.source import Source, SourceError
from .pipeline import Migration
from .recipe import page, recipe
from .report import Report, printable_report
from .terminal import printable_lines

_AROUND = 4
"""Lines shown before and behind a place."""
_LONGEST = 24
"""Lines of a statement that are shown."""


@dataclass(frozen=True)
class Item:
    """One finding with its code as it was and, where it has changed or will, as it is after the migration."""

    finding: Finding
    rule: Rule
    function: str
    code: str
    after: str
    line: int
    """Where it lies after the migration."""


def render(migration: Migration, report: Report) -> str:
    """The page as Markdown."""
    shown = printable_report(report)
    texts = _Texts(migration)
    rules = {rule.id: rule for rule in all_rules()}
    items = []
    for own, finding in zip(migration.findings, shown.findings, strict=True):
        if finding.level in (Level.REVIEW, Level.MANUAL) and not finding.suppressed:
            items.append(_item(own, finding, rules[finding.rule], texts))
    stops = [item for item in items if item.finding.level is Level.MANUAL]
    reviews = [item for item in items if item.finding.level is Level.REVIEW]
    environment = Environment(
        loader=PackageLoader(__package__ or "", "templates"), undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    return environment.get_template("brief.md.j2").render(
        report=shown,
        applied=texts.applied,
        stops=[(rules[rule], [item for item in stops if item.rule.id == rule]) for rule in _in_order(stops)],
        reviews=[(rules[rule], [item for item in reviews if item.rule.id == rule]) for rule in _in_order(reviews)],
        open=len(stops),
        to_read=len(reviews),
        recipe=recipe,
        page=page,
        commands=[_verify(entry) for entry in sorted({entry for item in items for entry in item.finding.programs})],
    )


def _in_order(items: list[Item]) -> list[str]:
    return list(dict.fromkeys(item.rule.id for item in items))


def _verify(entry: str) -> str:
    """The command that judges a program."""
    path = PurePosixPath(entry)
    if path.name == "__main__.py":
        return f"to-fsdp2 verify -- -m {'.'.join(path.parent.parts)}"
    return f"to-fsdp2 verify -- {entry}"


class _Texts:
    """The files of findings before and after the migration: as they lie on disk, or as they would be written."""

    def __init__(self, migration: Migration) -> None:
        self._migration = migration
        workspace = migration.workspace
        changed = {change.label: change for change in migration.changes if change.label not in migration.notebooks}
        on_disk = {label: workspace.path(label).read_bytes() for label in changed if workspace.path(label).is_file()}
        self.applied = bool(changed) and all(on_disk.get(label) != change.old for label, change in changed.items())
        self._new = on_disk if self.applied else {label: change.new for label, change in changed.items()}
        self.source = cache(self._source)
        self.new = cache(self._new_lines)

    def _source(self, label: str) -> Source:
        return Source.decode(label, self._migration.workspace.read(label))

    def _new_lines(self, label: str) -> tuple[list[str], dict[int, int]]:
        """The lines of the new text, and which of them each old line becomes or lies behind."""
        old = self.source(label).text.splitlines()
        if label not in self._new:
            return old, {line: line for line in range(1, len(old) + 1)}
        new = Source.decode(label, self._new[label]).text.splitlines()
        becomes: dict[int, int] = {}
        for _, a, b, c, d in difflib.SequenceMatcher(None, old, new, autojunk=False).get_opcodes():
            for line in range(a, b):
                becomes[line + 1] = min(c + line - a, max(c, d - 1)) + 1
        return new, becomes


def _item(own: Finding, finding: Finding, rule: Rule, texts: _Texts) -> Item:
    source = texts.source(own.file)
    shift = own.line - finding.line  # a cell's lines are counted from its beginning
    last = min(own.end_line, own.line + _LONGEST)
    code = _numbered(source.text.splitlines(), own.line, last, shift)
    new, becomes = texts.new(own.file)
    first, end = becomes[own.line], becomes[last]
    after = _numbered(new, first, max(first, end), shift)
    return Item(
        finding, rule, _function_around(source, own.line), code, "" if _bare(after) == _bare(code) else after, first - shift
    )


def _bare(numbered: str) -> list[str]:
    """Code without its numbers."""
    return [line.partition("|")[2] for line in numbered.splitlines()]


def _numbered(lines: list[str], first: int, last: int, shift: int) -> str:
    """Lines with those around them; `>` marks the ones that count."""
    start, stop = max(1 + shift, first - _AROUND), min(len(lines), last + _AROUND)
    width = len(str(stop - shift))
    numbered = (f"{'>' if first <= n <= last else ' '} {n - shift:>{width}} | {lines[n - 1]}" for n in range(start, stop + 1))
    return "\n".join("".join(printable_lines(line)).rstrip() for line in numbered)


def _function_around(source: Source, line: int) -> str:
    """The innermost function or class that a line lies in, with those around it; empty at the top of a file."""
    try:
        tree = source.tree
    except SourceError:
        return ""
    return ".".join(_path_to(tree, line))


def _path_to(node: ast.AST, line: int) -> Iterator[str]:
    for child in ast.iter_child_nodes(node):
        if getattr(child, "lineno", line + 1) <= line <= (getattr(child, "end_lineno", None) or 0):
            if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                yield child.name
            yield from _path_to(child, line)
            return
