"""The machine contract: schema 2, kind `migration`."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

from ..transforms.findings import Finding, Level
from .report import ProgramReport, Report


def render(report: Report) -> str:
    """The report as JSON, one line end at the end."""
    document = {
        "tool": "to-fsdp2",
        "schema": 2,
        "kind": "migration",
        "target_torch": report.target_torch,
        "files": {
            "seen": report.seen,
            "parsed": report.parsed,
            "changed": len(report.patches),
            "failed": report.failed,
        },
        "programs": [_program(program) for program in sorted(report.programs, key=lambda program: program.entry)],
        "findings": [_finding(finding) for finding in report.shown],
        "errors": [asdict(error) for error in report.errors],
    }
    # ASCII alone, so that a console with another encoding, or a path that is no UTF-8, cannot break it.
    return json.dumps(document, indent=2) + "\n"


def _program(program: ProgramReport) -> dict[str, Any]:
    counts = {level.value: program.count(level) for level in (Level.SAFE, Level.REVIEW, Level.MANUAL)}
    return {"entry": program.entry, "files": program.files, **counts}


def _finding(finding: Finding) -> dict[str, Any]:
    return {"id": finding.id, **asdict(finding), "level": finding.level.value, "form": finding.form.value}
