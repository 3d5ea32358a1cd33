"""What every report format draws: one run's outcome, with paths as the user reads them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from functools import cache

from ..transforms.findings import FileError, Finding, Level, Step
from .diff import file_patch
from .fingerprint import fingerprints, line_reader
from .notebook import cell_place, file_of
from .outside import connected_outside, note_on
from .pipeline import Migration
from .terminal import printable


@dataclass(frozen=True)
class ProgramReport:
    """One program: a file that is run, with the findings in all that it reaches."""

    entry: str
    findings: tuple[Finding, ...]
    left_alone: str = ""
    """Why nothing of it is written, if so."""

    @property
    def files(self) -> list[str]:
        """Where its findings are, in order."""
        return sorted({file_of(finding.file) for finding in self.findings})

    def count(self, level: Level) -> int:
        """Number of unsuppressed findings of a level."""
        return count(self.findings, level)


@dataclass
class Report:
    """One run, with POSIX paths relative to the working directory."""

    target_torch: str
    seen: int
    parsed: int
    findings: list[Finding]
    errors: list[FileError]
    patches: list[tuple[str, bytes]] = field(default_factory=list)
    """(file, its patch), in order; paths inside the patches are relative to the repository."""
    left_alone: dict[str, str] = field(default_factory=dict)
    """Programs, by entry point, of which nothing is written, and why."""
    written: bool = False
    """Whether the patches have been written."""
    show_safe: bool = False
    """Whether people are shown what is rewritten and needs nobody."""
    show_ok: bool = False
    fingerprints: dict[str, str] = field(default_factory=dict)
    """By the id of a finding: a name that survives moved lines."""
    notes: list[str] = field(default_factory=list)
    """Lines on what else there is to know: what was left out, for one."""

    @property
    def shown(self) -> list[Finding]:
        """The findings a report lists: those on sites that are right as they stand only when asked for."""
        return [finding for finding in self.findings if self.show_ok or finding.level is not Level.OK]

    @property
    def open(self) -> list[Finding]:
        """What is neither right as it stands nor suppressed."""
        return [finding for finding in self.findings if finding.level is not Level.OK and not finding.suppressed]

    @property
    def failed(self) -> int:
        """Number of files that could not be processed."""
        return len({error.file for error in self.errors})

    def count(self, level: Level) -> int:
        """Number of unsuppressed findings of a level."""
        return count(self.findings, level)

    @property
    def programs(self) -> list[ProgramReport]:
        """The programs with anything to report, those that need a person most first."""
        members: dict[str, list[Finding]] = {}
        for finding in self.shown:
            for entry in finding.programs:
                members.setdefault(entry, []).append(finding)
        programs = [ProgramReport(e, tuple(found), self.left_alone.get(e, "")) for e, found in members.items()]
        return sorted(programs, key=lambda p: (-p.count(Level.MANUAL), -p.count(Level.REVIEW), -len(p.findings), p.entry))

    @property
    def change(self) -> str:
        """What is said of files with a patch, in the tense of what happened."""
        return "changed" if self.written else "to change"

    @property
    def summary(self) -> str:
        """One line: files, and findings by level."""
        parts = [
            f"{self.seen:,} file{'s' if self.seen != 1 else ''}",
            f"{len(self.patches):,} {self.change}",
            *(f"{self.count(level):,} {level.value}" for level in (Level.SAFE, Level.REVIEW, Level.MANUAL)),
            f"{self.failed:,} failed",
        ]
        suppressed = sum(finding.suppressed for finding in self.findings)
        if suppressed:
            parts.append(f"{suppressed:,} suppressed")
        return ", ".join(parts)


def printable_report(report: Report) -> Report:
    """The report as people are shown it: nothing that comes from the repository acts on what shows it."""
    return replace(
        report,
        findings=[_printable(finding) for finding in report.findings],
        errors=[replace(error, file=printable(error.file), message=printable(error.message)) for error in report.errors],
        patches=[(printable(file), patch) for file, patch in report.patches],
        left_alone={printable(entry): printable(reason) for entry, reason in report.left_alone.items()},
    )


def _printable(finding: Finding) -> Finding:
    return replace(
        finding,
        file=printable(finding.file),
        symbol=printable(finding.symbol),
        message=printable(finding.message),
        advice=printable(finding.advice),
        programs=tuple(map(printable, finding.programs)),
        provenance=tuple(
            replace(step, file=printable(step.file), text=printable(" ".join(step.text.split()))) for step in finding.provenance
        ),
    )


def count(findings: Iterable[Finding], level: Level) -> int:
    """Number of unsuppressed findings of a level."""
    return sum(finding.level is level and not finding.suppressed for finding in findings)


def changed_lines(patch: bytes) -> tuple[int, int]:
    """Lines that a patch adds and removes."""
    starts = [line[:1] for line in patch.partition(b"\n@@")[2].split(b"\n")]
    return starts.count(b"+"), starts.count(b"-")


def build_report(migration: Migration, target_torch: str) -> Report:
    """The outcome of a run, its labels turned into paths from the working directory."""
    display = cache(migration.workspace.display)

    def place(label: str, line: int) -> tuple[str, int]:
        notebook = migration.notebooks.get(label)
        if notebook is None:
            return display(label), line
        cell, line = notebook.place(line)
        return cell_place(display(label), cell), line

    def step_of(step: Step) -> Step:
        file, line = place(step.file, step.line)
        return replace(step, file=file, line=line)

    def finding_of(finding: Finding) -> Finding:
        file, line = place(finding.file, finding.line)
        return replace(
            finding,
            file=file,
            line=line,
            end_line=line + finding.end_line - finding.line,
            programs=tuple(display(entry) for entry in finding.programs),
            provenance=tuple(map(step_of, finding.provenance)),
        )

    def error_of(error: FileError) -> FileError:
        if error.line is None:
            return replace(error, file=display(error.file))
        file, line = place(error.file, error.line)
        return replace(error, file=file, line=line)

    outside = connected_outside(migration.workspace, {finding.file for finding in migration.findings})
    findings = [finding_of(finding) for finding in migration.findings]
    names = fingerprints(migration.findings, line_reader(migration.workspace))
    return Report(
        target_torch=target_torch,
        seen=len(migration.workspace.files),
        parsed=migration.parsed,
        findings=findings,
        fingerprints=dict(zip((finding.id for finding in findings), names, strict=True)),
        errors=[error_of(error) for error in migration.errors],
        patches=[(display(change.label), file_patch(change.label, change.old, change.new)) for change in migration.changes],
        left_alone={display(entry): reason for entry, reason in migration.left_alone.items()},
        notes=[note for note in (note_on([display(label) for label in outside]), *migration.notes) if note],
    )
