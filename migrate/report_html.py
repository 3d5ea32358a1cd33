"""The report as one page that needs nothing else."""

from __future__ import annotations

from collections.abc import Sequence

from jinja2 import Environment, PackageLoader, StrictUndefined

from ..transforms.findings import Level
from ..transforms.rule import Rule
from .report import Report, printable_report
from .terminal import printable_lines

_KINDS = {"+": "add", "-": "del", "@": "at"}


def render(report: Report, rules: Sequence[Rule]) -> str:
    """The report as HTML; `rules` gives the titles that ids show when pointed at."""
    shown = printable_report(report)
    environment = Environment(
        loader=PackageLoader(__package__ or "", "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
    )
    return environment.get_template("report.html.j2").render(
        report=shown,
        levels=[Level.SAFE, Level.REVIEW, Level.MANUAL],
        titles={rule.id: rule.title for rule in rules},
        patches=[(file, _lines(patch)) for file, patch in shown.patches],
    )


def _lines(patch: bytes) -> list[tuple[str, str]]:
    lines = printable_lines(patch.decode("utf-8", "replace"))[:-1]
    return [(_KINDS.get(line[:1], "") if not line.startswith(("+++", "---")) else "", line) for line in lines]
