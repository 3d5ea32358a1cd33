"""The report for a pull request's comment."""

from __future__ import annotations

import html
from collections.abc import Iterator
from itertools import groupby

from ..transforms.findings import Finding, Level
from .report import Report, printable_report
from .terminal import printable_lines


def render(report: Report) -> str:
    """The report as GitHub-flavoured Markdown, patches folded away."""
    return "\n".join(_lines(printable_report(report))) + "\n"


def _lines(report: Report) -> Iterator[str]:
    yield "## Migration to FSDP2"
    yield ""
    yield f"{report.summary}. Target: torch {report.target_torch}."
    if report.programs:
        yield ""
        yield "| program | files | safe | review | manual | |"
        yield "|---|---:|---:|---:|---:|---|"
        for program in report.programs:
            levels = (Level.SAFE, Level.REVIEW, Level.MANUAL)
            counts = " | ".join(str(count) for count in (len(program.files), *map(program.count, levels)))
            alone = f"left alone: {program.left_alone}" if program.left_alone else ""
            yield f"| {_code(program.entry)} | {counts} | {_cell(alone)} |"
    for file, findings in groupby(report.shown, key=lambda finding: finding.file):
        yield ""
        yield f"### {_code(file)}"
        yield ""
        yield "| line | level | rule | what |"
        yield "|---:|---|---|---|"
        for finding in findings:
            yield f"| {finding.line} | {finding.level.value} | {finding.rule} | {_what(finding)} |"
    if report.errors:
        yield ""
        yield "### Could not be processed"
        yield ""
        for error in report.errors:
            place = error.file if error.line is None else f"{error.file}:{error.line}"
            yield f"- {_code(place)}: {_escaped(error.message)}"
    for file, patch in report.patches:
        text = "\n".join(printable_lines(patch.decode("utf-8", "replace")))
        fence = "`" * max(3, _longest_run(text) + 1)
        yield ""
        yield f"<details><summary>{html.escape(file)}</summary>"
        yield ""
        yield f"{fence}diff"
        yield text.removesuffix("\n")
        yield fence
        yield ""
        yield "</details>"


def _what(finding: Finding) -> str:
    parts = [_cell(finding.message)]
    if finding.advice:
        parts.append(_cell(finding.advice))
    if finding.provenance:
        parts.append("because " + " → ".join(_code(f"{step.file}:{step.line}") for step in finding.provenance))
    if finding.suppressed:
        parts.append("*suppressed*")
    return "<br>".join(parts)


def _cell(text: str) -> str:
    return _escaped(text).replace("|", "\\|").replace("\n", " ")


def _escaped(text: str) -> str:
    """Text that shows as it is: names like `__init__` and `list[int]` are no markup."""
    for character in "\\`*_[]<>":
        text = text.replace(character, f"&#{ord(character)};" if character in "<>" else f"\\{character}")
    return text


def _code(text: str) -> str:
    fence = "`" * (_longest_run(text) + 1)
    return f"{fence}{text}{fence}".replace("|", "\\|")


def _longest_run(text: str) -> int:
    longest = run = 0
    for character in text:
        run = run + 1 if character == "`" else 0
        longest = max(longest, run)
    return longest
