"""A migration change by change, with the reason of each: what is declined leaves its programs alone, for half would be wrong."""

from __future__ import annotations

from rich.text import Text

from ..transforms.findings import Finding, Level
from .hunks import Block, changes
from .pipeline import Migration
from .program_groups import Group, groups_of
from .report import Report, printable_report
from .report_text import described
from .terminal import Terminal, printable_lines

_ANSWERS = "[y]es, [n]o: leave {name} alone, [a]ll of {name}, [q]uit: leave the rest alone"


def choose(migration: Migration, report: Report) -> None:
    """Ask about each change, on stderr and stdin; what is declined is taken out of the migration and its report."""
    console = Terminal(stderr=True)
    patches = dict(zip((change.label for change in migration.changes), (patch for _, patch in report.patches), strict=True))
    groups = groups_of(migration.findings, patches.keys())
    shown = printable_report(report).findings
    declined: list[Group] = []
    answer = ""
    for number, group in enumerate(groups, start=1):
        console.print(Text(f"{group.name} ({number} of {len(groups)})", style="bold"), soft_wrap=True, highlight=False)
        answer = "q" if answer == "q" else _asked(console, migration, shown, group, patches)
        if answer in "nq":
            declined.append(group)
    _leave_alone(migration, report, declined)


def _asked(
    console: Terminal, migration: Migration, shown: list[Finding], group: Group, patches: dict[str, bytes]
) -> str:  # fmt: skip
    told: set[tuple[str, int]] = set()
    for own, finding in zip(migration.findings, shown, strict=True):
        if own.file not in group.files or own.suppressed or own.level is Level.OK:
            continue
        # The lines of a notebook's cells are not those of its file.
        all_blocks = () if own.file in migration.notebooks else changes(patches[own.file])
        blocks = [block for block in all_blocks if block.touches(own.line, own.end_line)]
        for line in described(finding):
            console.print(line, soft_wrap=True, highlight=False)
        for block in blocks:
            if (own.file, block.old) not in told:
                _show(console, block)
                told.add((own.file, block.old))
        answer = _answer(console, _ANSWERS.format(name=group.name))
        if answer != "y":
            return answer
    return "y"


def _show(console: Terminal, block: Block) -> None:
    for sign, style, lines in (("-", "red", block.removed), ("+", "green", block.added)):
        for line in lines:
            console.print(Text(f"    {sign}{printable_lines(line)[0]}", style=style), soft_wrap=True, highlight=False)


def _answer(console: Terminal, answers: str) -> str:
    while True:
        console.print(Text(f"  {answers}? "), end="", soft_wrap=True, highlight=False)
        given = input().strip().lower()[:1]
        if given and given in "ynaq":
            return given


def _leave_alone(migration: Migration, report: Report, declined: list[Group]) -> None:
    """Take files of declined groups out; modules of helpers go with the last file that changes."""
    files = frozenset().union(*(group.files for group in declined))
    taken = {
        file for group in groups_of(migration.findings, {change.label for change in migration.changes}) for file in group.files
    }
    keep_helpers = not declined or bool(taken - files)
    kept = [change.label not in files and (change.label in taken or keep_helpers) for change in migration.changes]
    report.patches = [patch for patch, is_kept in zip(report.patches, kept, strict=True) if is_kept]
    migration.changes = [change for change, is_kept in zip(migration.changes, kept, strict=True) if is_kept]
    for group in declined:
        report.left_alone |= {migration.workspace.display(entry): "declined" for entry in group.programs}
