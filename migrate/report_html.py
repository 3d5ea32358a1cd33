"""The report as one page that needs nothing else: what is found, by file, and the change beside what was there."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape
from pygments import highlight
from pygments.formatters.html import HtmlFormatter
from pygments.lexers.python import PythonLexer

from ..transforms.findings import Finding, Level
from ..transforms.rule import Rule
from .hunks import Block, hunks
from .notebook import file_of
from .recipe_html import recipe_html
from .report import Report, changed_lines, printable_report
from .terminal import printable_lines

_WORST_FIRST = (Level.MANUAL, Level.REVIEW, Level.SAFE, Level.OK)


@dataclass
class Row:
    """One finding, and the anchors of the changes that are its own."""

    finding: Finding
    anchor: str
    programs: str
    changes: list[str] = field(default_factory=list)


@dataclass
class Change:
    """Lines side by side, with their numbers, and the findings that they come from."""

    anchor: str
    old: list[tuple[int, Markup]]
    new: list[tuple[int, Markup]]
    is_change: bool
    rows: list[Row]


@dataclass
class File:
    """A file with its findings and its changes."""

    name: str
    anchor: str
    rows: list[Row]
    hunks: list[list[Change]]
    added: int
    removed: int

    def count(self, level: Level) -> int:
        """Findings of a level that are open."""
        return sum(row.finding.level is level and not row.finding.suppressed for row in self.rows)

    @property
    def urgent(self) -> list[Row]:
        """What somebody has to look at."""
        return [row for row in self.rows if _is_urgent(row.finding)]

    @property
    def calm(self) -> list[Row]:
        """What needs nobody."""
        return [row for row in self.rows if not _is_urgent(row.finding)]


def render(report: Report, rules: Sequence[Rule]) -> str:
    """The report as HTML; `rules` gives the titles that ids show."""
    shown = printable_report(report)
    environment = Environment(
        loader=PackageLoader(__package__ or "", "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    programs = {program.entry: number for number, program in enumerate(shown.programs)}
    files = [_file(*each, programs=programs) for each in _by_file(report, shown)]
    left = {finding.rule for finding in shown.open if finding.level is Level.MANUAL}
    return environment.get_template("report.html.j2").render(
        report=shown,
        files=sorted(files, key=lambda file: (-file.count(Level.MANUAL), -file.count(Level.REVIEW), file.name)),
        levels=[level for level in _WORST_FIRST if any(finding.level is level for finding in shown.shown)],
        counted=[Level.SAFE, Level.REVIEW, Level.MANUAL],
        titles={rule.id: rule.title for rule in rules},
        recipes={rule.id: recipe_html(rule) for rule in rules if rule.id in left},
        used=sorted({finding.rule for finding in shown.shown}),
    )


def _by_file(report: Report, shown: Report) -> Iterator[tuple[str, list[tuple[Finding, str]], bytes]]:
    """Each file with its findings, the names of these, and its patch."""
    names = [report.fingerprints.get(finding.id, f"{number}") for number, finding in enumerate(report.shown)]
    named = sorted(zip(shown.shown, names, strict=True), key=_place)
    found = {name: list(own) for name, own in groupby(named, key=lambda pair: file_of(pair[0].file))}
    patches = dict(shown.patches)
    for name in sorted(found.keys() | patches.keys()):
        yield name, found.get(name, []), patches.get(name, b"")


def _place(pair: tuple[Finding, str]) -> tuple[str, str, int, int]:
    return file_of(pair[0].file), pair[0].file, pair[0].line, pair[0].column


def _is_urgent(finding: Finding) -> bool:
    return finding.level in (Level.MANUAL, Level.REVIEW) and not finding.suppressed


def _file(name: str, findings: list[tuple[Finding, str]], patch: bytes, programs: dict[str, int]) -> File:
    rows = []
    for finding, fingerprint in findings:
        own = " ".join(str(programs[entry]) for entry in finding.programs if entry in programs)
        rows.append(Row(finding, f"f-{fingerprint}", own))
    anchor = f"file-{abs(hash(name)):x}" if not rows else f"file-{rows[0].anchor[2:]}"
    is_python = name.endswith(".py")
    views = []
    for number, blocks in enumerate(hunks(patch), start=1):
        old, new = (_highlighted(_side(blocks, side), is_python) for side in ("removed", "added"))
        views.append([_change(block, rows, f"{anchor}-{number}-{n}", old, new) for n, block in enumerate(blocks, start=1)])
    return File(name, anchor, rows, views, *changed_lines(patch))


def _side(blocks: list[Block], side: str) -> list[str]:
    return [line for block in blocks for line in (*block.kept, *getattr(block, side))]


def _highlighted(lines: list[str], is_python: bool) -> Iterator[Markup]:
    """The lines one after the other, as HTML."""
    safe = [printable_lines(line)[0] for line in lines]
    if not is_python:
        return map(escape, safe)
    text = highlight("\n".join(safe), PythonLexer(stripnl=False, ensurenl=False), HtmlFormatter(nowrap=True))
    return iter([Markup(line) for line in text.split("\n")])


def _change(block: Block, rows: list[Row], anchor: str, old: Iterator[Markup], new: Iterator[Markup]) -> Change:
    left = [(block.old + n, next(old)) for n, _ in enumerate((*block.kept, *block.removed))]
    right = [(block.new + n, next(new)) for n, _ in enumerate((*block.kept, *block.added))]
    own = [row for row in rows if block.is_change and block.touches(row.finding.line, row.finding.end_line)]
    own = [row for row in own if row.finding.level is not Level.OK and "#" not in row.finding.file]
    for row in own:
        row.changes.append(anchor)
    return Change(anchor, left, right, block.is_change, own)
