"""The report for people at a terminal: short, one line per finding or for all that say the same of one line of code."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby

from rich.console import Console
from rich.text import Text

from ..transforms.findings import Finding, Level, Step
from .report import Group, Report

_STYLES = {Level.OK: "dim", Level.SAFE: "green", Level.REVIEW: "yellow", Level.MANUAL: "bold red"}

_LONGEST_STEP = 60


def render(report: Report, console: Console) -> None:
    """Print the report. Text is never read as markup, so code shows as it is written."""
    for line in _lines(report):
        console.print(line, soft_wrap=True, highlight=False)


def render_patch(patch: bytes, console: Console) -> None:
    """Print a patch in colours, for reading."""
    for line in patch.decode("utf-8", "replace").split("\n")[:-1]:
        style = {"+": "green", "-": "red", "@": "cyan", "d": "bold"}.get(line[:1], "")
        if line.startswith(("+++", "---")):
            style = "bold"
        console.print(Text(line, style=style), soft_wrap=True, highlight=False)


def _lines(report: Report) -> Iterator[Text]:
    said: set[str] = set()
    for _, findings in groupby(report.shown, key=lambda finding: finding.file):
        for _, alike in groupby(findings, key=_said):
            finding, *others = alike
            yield _headline(finding, others)
            yield from _details(finding, said)
        yield Text()
    if report.groups:
        yield Text("Groups (applied whole or not at all)", style="bold")
        for group in report.groups:
            yield _group(group)
        yield Text()
    if report.errors:
        yield Text("Could not be processed", style="bold")
        for error in report.errors:
            place = error.file if error.line is None else f"{error.file}:{error.line}"
            yield Text.assemble("  ", place, "  ", error.message)
        yield Text()
    if any(finding.level is Level.MANUAL for finding in report.shown):
        yield Text("to-fsdp2 rules ID tells more about a rule, with examples.", style="dim")


def _said(finding: Finding) -> tuple[object, ...]:
    """What is said, and of which line of code."""
    about = finding.line, finding.level, finding.rule, finding.suppressed
    return *about, finding.message, finding.advice, finding.blocked_by, _chain(finding)


def _headline(finding: Finding, others: list[Finding]) -> Text:
    columns = "".join(f", :{other.column}" for other in others)
    style = "dim" if finding.suppressed else _STYLES[finding.level]
    return Text.assemble(
        (f"{finding.file}:{finding.line}:{finding.column}{columns}", "bold"),
        " ",
        (finding.level.value, style),
        " ",
        (finding.rule, "cyan"),
        " ",
        finding.message,
        (" (suppressed)" if finding.suppressed else "", "dim"),
    )


def _details(finding: Finding, said: set[str]) -> Iterator[Text]:
    """What holds it back, reason and advice, and provenance; each where it first occurs."""
    if finding.blocked_by:
        blocked = f"{finding.file} {finding.blocked_by}"
        if blocked not in said:
            said.add(blocked)
            yield Text.assemble("    ", ("blocked by ", "red"), finding.blocked_by)
    elif finding.level is Level.MANUAL:
        for text in (finding.why, finding.advice):
            if text and text not in said:
                said.add(text)
                yield Text(f"    {text}")
    chain = _chain(finding)
    if chain and chain not in said:
        said.add(chain)
        yield Text(f"    {chain}", style="dim")


def _chain(finding: Finding) -> str:
    """The way a value came: `because wrap.py:9 model = FSDP(model) → main.py:10 train(model)`.

    The step at the finding's own line is left out, for that line has been named already.
    """
    steps = [step for step in finding.provenance if (step.file, step.line) != (finding.file, finding.line)]
    return "because " + " → ".join(_step(step) for step in steps) if steps else ""


def _step(step: Step) -> str:
    text = " ".join(step.text.split())
    if len(text) > _LONGEST_STEP:
        text = text[: _LONGEST_STEP - 1] + "…"
    return f"{step.file}:{step.line} {text}".strip()


def _group(group: Group) -> Text:
    sites = f"{len(group.findings)} site{'s' if len(group.findings) > 1 else ''}"
    files = f"{len(group.files)} file{'s' if len(group.files) > 1 else ''}"
    style = _STYLES[Level.MANUAL if group.blocked_by else group.level]
    return Text.assemble("  ", group.name, f"  {sites} in {files}  ", (group.outcome, style))
