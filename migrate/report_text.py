"""The report for people at a terminal: by program what changes, then what needs them, then the rest if they ask for it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import groupby

from rich.console import Console
from rich.text import Text

from ..transforms.findings import Finding, Form, Level, Step
from .report import ProgramReport, Report, changed_lines, printable_report
from .terminal import printable_lines

_STYLES = {Level.OK: "dim", Level.SAFE: "green", Level.REVIEW: "yellow", Level.MANUAL: "bold red"}
_FORMS = [Form.STOP, Form.NOTE, Form.FALLBACK, Form.IDIOM]
"""From what needs a person most to what needs one least."""

_LONGEST_STEP = 60
_MOST_ENTRIES = 3


def render(report: Report, console: Console) -> None:
    """Print the report. Text is never read as markup, so code shows as it is written."""
    for line in _lines(printable_report(report)):
        console.print(line, soft_wrap=True, highlight=False)


def render_patch(patch: bytes, console: Console) -> None:
    """Print a patch in colours, for reading."""
    for line in printable_lines(patch.decode("utf-8", "replace"))[:-1]:
        style = {"+": "green", "-": "red", "@": "cyan", "d": "bold"}.get(line[:1], "")
        if line.startswith(("+++", "---")):
            style = "bold"
        console.print(Text(line, style=style), soft_wrap=True, highlight=False)


def _lines(report: Report) -> Iterator[Text]:
    said: set[str] = set()
    told: set[Finding] = set()
    needs_rules = False
    for programs in _alike(report.programs):
        findings = programs[0].findings
        yield _program(programs, report)
        new = [finding for finding in findings if finding not in told and _is_shown(finding, report)]
        told.update(new)
        for _, alike in groupby(sorted(new, key=_need), key=_said):
            finding, *others = alike
            yield _headline(finding, others)
            yield from _details(finding, said)
        if hidden := _hidden(findings, new):
            yield Text(f"  {hidden}", style="dim")
        needs_rules = needs_rules or any(finding.level is Level.MANUAL for finding in new)
        yield Text()
    if report.errors:
        yield Text("Could not be processed", style="bold")
        for error in report.errors:
            place = error.file if error.line is None else f"{error.file}:{error.line}"
            yield Text.assemble("  ", place, "  ", error.message)
        yield Text()
    if needs_rules:
        yield Text("to-fsdp2 rules ID tells more about a rule, with examples.", style="dim")


def described(finding: Finding) -> Iterator[Text]:
    """One finding with its reason, its evidence and the way out."""
    yield _headline(finding, [])
    if finding.level is not Level.MANUAL and finding.why:
        yield Text(f"      {finding.why}")
    yield from _details(finding, set())


def _alike(programs: Iterable[ProgramReport]) -> list[list[ProgramReport]]:
    """Programs with the same findings together, in the order of the first of each."""
    found: dict[tuple[Finding, ...], list[ProgramReport]] = {}
    for program in programs:
        found.setdefault(program.findings, []).append(program)
    return list(found.values())


def _program(programs: list[ProgramReport], report: Report) -> Text:
    """What changes in programs with the same findings, and what of it needs somebody."""
    names = ", ".join(program.entry for program in programs[:_MOST_ENTRIES])
    if len(programs) > _MOST_ENTRIES:
        names += f" and {len(programs) - _MOST_ENTRIES} more"
    program = programs[0]
    changed = [changed_lines(patch) for file, patch in report.patches if file in program.files]
    if program.left_alone:
        what = f"left alone: {program.left_alone}"
    elif changed:
        added, removed = (sum(lines) for lines in zip(*changed, strict=True))
        what = f"{_number(len(changed), 'file')} {report.change}, +{added} -{removed} lines"
    else:
        what = "nothing to change"
    stops, reviews = program.count(Level.MANUAL), program.count(Level.REVIEW)
    return Text.assemble(
        (names, "bold"),
        f": {what}; ",
        (_number(stops, "open stop"), _STYLES[Level.MANUAL] if stops else ""),
        ", ",
        (f"{reviews} to review", _STYLES[Level.REVIEW] if reviews else ""),
    )


def _is_shown(finding: Finding, report: Report) -> bool:
    if finding.suppressed or finding.level is Level.OK:
        return report.show_ok
    return finding.level is not Level.SAFE or report.show_safe


def _need(finding: Finding) -> tuple[object, ...]:
    """Stops first, then reviews, in each the least certain first; what is suppressed comes last."""
    where = finding.file, finding.line, finding.column
    return finding.suppressed, -finding.level.rank, _FORMS.index(finding.form), *where


def _hidden(findings: Iterable[Finding], shown: list[Finding]) -> str:
    """What is not listed here, in a line: told with another program, or in need of nobody."""
    rest = [finding for finding in findings if finding not in shown]
    elsewhere = sum(finding.level in (Level.REVIEW, Level.MANUAL) and not finding.suppressed for finding in rest)
    safe = sum(finding.level is Level.SAFE and not finding.suppressed for finding in rest)
    parts = [f"{_number(elsewhere, 'finding')} told above"] if elsewhere else []
    if safe:
        parts.append(f"{_number(safe, 'site')} rewritten that {'needs' if safe == 1 else 'need'} nobody (--all)")
    return ", ".join(parts)


def _said(finding: Finding) -> tuple[object, ...]:
    """What is said, and of which line of code."""
    about = finding.file, finding.line, finding.level, finding.rule, finding.suppressed
    return *about, finding.message, finding.advice, _chain(finding)


def _headline(finding: Finding, others: list[Finding]) -> Text:
    columns = "".join(f", :{other.column}" for other in others)
    style = "dim" if finding.suppressed else _STYLES[finding.level]
    return Text.assemble(
        "  ",
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
    """Reason, evidence, way out, and how to contradict; each where it first occurs."""
    is_stop = finding.level is Level.MANUAL and not finding.suppressed
    chain = _chain(finding)
    lines = [(chain, "dim")] if chain else []
    if is_stop and finding.why:
        lines.insert(0, (finding.why, ""))
    if finding.advice and finding.level in (Level.REVIEW, Level.MANUAL):
        lines.append((f"instead: {finding.advice}", ""))
    if is_stop:
        lines.append((f"not so? say it on that line: # to-fsdp2: ignore[{finding.rule}] reason", "dim"))
    for text, style in lines:
        if text not in said:
            said.add(text)
            yield Text(f"      {text}", style=style)


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


def _number(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'s' if count != 1 else ''}"
