"""Workflow commands of GitHub Actions: what is printed so is shown on the lines of a pull request."""

from __future__ import annotations

from ..transforms.findings import FileError, Finding, Level
from ..transforms.rule import all_rules
from .notebook import file_of
from .report import Report, printable_report

_KINDS = {Level.SAFE: "notice", Level.REVIEW: "warning", Level.MANUAL: "error"}


def render(report: Report) -> str:
    """One command for each open finding and each file that could not be processed.

    What needs a person most comes first: GitHub shows ten of a kind for each step.
    """
    shown = printable_report(report)
    titles = {rule.id: rule.title for rule in all_rules()}
    findings = sorted(shown.open, key=lambda finding: -finding.level.rank)
    lines = [_error(error) for error in shown.errors]
    lines += [_finding(finding, titles.get(finding.rule, "")) for finding in findings]
    return "".join(f"{line}\n" for line in lines)


def _finding(finding: Finding, title: str) -> str:
    # Columns are those of one line; for a site of several lines GitHub refuses them.
    columns = {"col": finding.column, "endColumn": finding.end_column} if finding.line == finding.end_line else {}
    where = {"file": file_of(finding.file), "line": finding.line, "endLine": finding.end_line, **columns}
    message = "\n".join(filter(None, [finding.message, finding.advice]))
    return _command(_KINDS[finding.level], {**where, "title": f"{finding.rule} {title}".strip()}, message)


def _error(error: FileError) -> str:
    where = {"file": file_of(error.file), **({} if error.line is None else {"line": error.line})}
    return _command("error", {**where, "title": "could not be processed"}, error.message)


def _command(kind: str, properties: dict[str, object], message: str) -> str:
    listed = ",".join(f"{name}={_escaped(str(value), ':,')}" for name, value in properties.items())
    return f"::{kind} {listed}::{_escaped(message)}"


def _escaped(text: str, more: str = "") -> str:
    for character in f"%\r\n{more}":
        text = text.replace(character, f"%{ord(character):02X}")
    return text
