"""Names for findings that survive moved lines: by rule, file and the text of the line, not by its number."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Iterable

from ..transforms.findings import Finding
from ..transforms.text.source import Source, SourceError
from .workspace import Workspace


def fingerprints(findings: Iterable[Finding], line_text: Callable[[str, int], str]) -> list[str]:
    """A name for each finding; equal findings on lines that read the same are counted through."""
    seen: Counter[tuple[str, str, str]] = Counter()
    found = []
    for finding in findings:
        key = finding.rule, finding.file, " ".join(line_text(finding.file, finding.line).split())
        found.append(hashlib.sha256("\0".join((*key, str(seen[key]))).encode("utf-8", "surrogateescape")).hexdigest()[:16])
        seen[key] += 1
    return found


def line_reader(workspace: Workspace) -> Callable[[str, int], str]:
    """The text of a line of a file, by label and number; empty where there is none."""
    lines: dict[str, list[str]] = {}

    def read(label: str, line: int) -> str:
        if label not in lines:
            try:
                lines[label] = Source.decode(label, workspace.read(label)).lines
            except (OSError, SourceError):
                lines[label] = []
        return lines[label][line - 1] if 0 < line <= len(lines[label]) else ""

    return read
