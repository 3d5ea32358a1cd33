"""What every report format draws: one run's outcome, with paths as the user reads them."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace

from ..transforms.findings import FileError, Finding, Level
from .diff import file_patch
from .outside import connected_outside, note_on
from .pipeline import Migration


@dataclass(frozen=True)
class Group:
    """The findings of one wrapped model, its optimizers and checkpoints, applied together or not at all."""

    name: str
    findings: tuple[Finding, ...]

    @property
    def outcome(self) -> str:
        """What becomes of it, in words."""
        if self.blocked_by:
            return f"held back by {self.blocked_by}"
        counts = Counter(finding.level for finding in self.findings)
        return ", ".join(f"{counts[level]} {level.value}" for level in Level if counts[level])

    @property
    def level(self) -> Level:
        """The level of its least certain site."""
        return max((finding.level for finding in self.findings), key=lambda level: level.rank)

    @property
    def blocked_by(self) -> str | None:
        """`file:line` of the hazard that holds it back."""
        return next((finding.blocked_by for finding in self.findings if finding.blocked_by), None)

    @property
    def files(self) -> list[str]:
        """Where its sites are, in order."""
        return sorted({finding.file for finding in self.findings})


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
    show_ok: bool = False
    note: str = ""
    """A line on what was left out, empty when nothing was."""

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

    @property
    def groups(self) -> list[Group]:
        """The migration groups, in the order of their first site."""
        members: dict[str, list[Finding]] = {}
        for finding in self.shown:
            if finding.group is not None:
                members.setdefault(finding.group, []).append(finding)
        return [Group(name, tuple(findings)) for name, findings in members.items()]

    def count(self, level: Level) -> int:
        """Number of unsuppressed findings of a level."""
        return Counter(finding.level for finding in self.findings if not finding.suppressed)[level]

    @property
    def summary(self) -> str:
        """One line: files, and findings by level."""
        parts = [
            f"{self.seen:,} file{'s' if self.seen != 1 else ''}",
            f"{len(self.patches):,} to change",
            *(f"{self.count(level):,} {level.value}" for level in (Level.SAFE, Level.REVIEW, Level.MANUAL)),
            f"{self.failed:,} failed",
        ]
        suppressed = sum(finding.suppressed for finding in self.findings)
        if suppressed:
            parts.append(f"{suppressed:,} suppressed")
        return ", ".join(parts)


def build_report(migration: Migration, target_torch: str, show_ok: bool) -> Report:
    """The outcome of a run, its labels turned into paths from the working directory."""
    display = migration.workspace.display

    def place(reference: str) -> str:
        label, _, line = reference.rpartition(":")
        return f"{display(label)}:{line}"

    findings = [
        replace(
            finding,
            file=display(finding.file),
            blocked_by=place(finding.blocked_by) if finding.blocked_by else None,
            provenance=tuple(replace(step, file=display(step.file)) for step in finding.provenance),
        )
        for finding in migration.findings
    ]
    return Report(
        target_torch=target_torch,
        seen=len(migration.workspace.files),
        parsed=migration.parsed,
        findings=findings,
        errors=[replace(error, file=display(error.file)) for error in migration.errors],
        patches=[
            (display(change.label), file_patch(change.label, change.old, change.new)) for change in migration.changes
        ],
        show_ok=show_ok,
        note=note_on([display(label) for label in connected_outside(migration.workspace, _with_findings(migration))]),
    )


def _with_findings(migration: Migration) -> set[str]:
    return {finding.file for finding in migration.findings}
