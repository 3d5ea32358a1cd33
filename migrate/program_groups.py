"""Programs that can be migrated only together: they share a file that changes."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass

from ..transforms.findings import Finding


@dataclass(frozen=True)
class Group:
    """Programs, by entry point, and the files that change for them. No two groups have a file in common."""

    programs: frozenset[str]
    files: frozenset[str]

    @property
    def name(self) -> str:
        """As people are told of it."""
        first, *others = sorted(self.programs)
        return f"{first} and {len(others)} more" if others else first


def groups_of(findings: Iterable[Finding], files: Collection[str]) -> list[Group]:
    """The groups of what changes, in the order of their programs."""
    groups: list[Group] = []
    for finding in findings:
        if finding.file in files:
            own = Group(frozenset(finding.programs), frozenset({finding.file}))
            for group in [group for group in groups if group.programs & own.programs or group.files & own.files]:
                groups.remove(group)
                own = Group(own.programs | group.programs, own.files | group.files)
            groups.append(own)
    return sorted(groups, key=lambda group: min(group.programs))
