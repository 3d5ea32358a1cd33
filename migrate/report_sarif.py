"""SARIF 2.1.0, which code hosts show as annotations on the lines."""

from __future__ import annotations

import json
from collections.abc import Sequence
from importlib.metadata import version
from typing import Any
from urllib.parse import quote

from ..transforms.findings import FileError, Finding, Level
from ..transforms.rule import Rule
from . import rule_reference
from .hunks import Block, changes
from .notebook import file_of
from .report import Report
from .rule_reference import best_level

_DOCUMENTATION = "https://docs.pytorch.org/docs/stable/distributed.fsdp.fully_shard.html"
_LEVELS = {Level.OK: "none", Level.SAFE: "note", Level.REVIEW: "warning", Level.MANUAL: "error"}


def render(report: Report, rules: Sequence[Rule]) -> str:
    """The report as SARIF; `rules` explains the ids that occur."""
    used = {finding.rule for finding in report.shown}
    described = [rule for rule in rules if rule.id in used]
    index = {rule.id: position for position, rule in enumerate(described)}
    fixes = {file: list(changes(patch)) for file, patch in report.patches} if not report.written else {}
    run = {
        "tool": {
            "driver": {
                "name": "to-fsdp2",
                "version": version("to-fsdp2"),
                "rules": [_rule(rule) for rule in described],
            }
        },
        "columnKind": "unicodeCodePoints",
        "results": [_result(finding, report, index.get(finding.rule), fixes) for finding in report.shown],
        "invocations": [
            {
                "executionSuccessful": True,
                "toolExecutionNotifications": [_notification(error) for error in report.errors],
            }
        ],
    }
    document = {
        "$schema": "https://json.schemastore.org/sarif-2.1.0.json",
        "version": "2.1.0",
        "runs": [run],
    }
    return json.dumps(document, indent=2) + "\n"


def _rule(rule: Rule) -> dict[str, Any]:
    return {
        "id": rule.id,
        "shortDescription": {"text": rule.title},
        "fullDescription": {"text": rule.why or rule.title},
        "helpUri": next((source for source in rule.sources if "://" in source), _DOCUMENTATION),
        "help": {
            "text": rule.advice or rule.why or rule.title,
            "markdown": "\n".join(rule_reference.section(rule)),
        },
        "defaultConfiguration": {"level": _LEVELS[best_level(rule)]},
    }


def _result(
    finding: Finding, report: Report, rule_index: int | None, fixes: dict[str, list[Block]]
) -> dict[str, Any]:
    text = finding.message if not finding.advice else f"{finding.message}\n{finding.advice}"
    result: dict[str, Any] = {
        "ruleId": finding.rule,
        "level": _LEVELS[finding.level],
        "kind": "pass" if finding.level is Level.OK else "fail",
        "message": {"text": text},
        "locations": [
            {
                "physicalLocation": {
                    "artifactLocation": _artifact(finding.file),
                    "region": {
                        "startLine": finding.line,
                        "startColumn": finding.column,
                        "endLine": finding.end_line,
                        "endColumn": finding.end_column,
                    },
                }
            }
        ],
        "partialFingerprints": {"site/v2": report.fingerprints.get(finding.id, finding.id)},
        "properties": {"symbol": finding.symbol, "form": finding.form.value, "programs": list(finding.programs)},
    }
    if rule_index is not None:
        result["ruleIndex"] = rule_index
    if finding.provenance:
        steps = [{"location": _place(step.file, step.line, step.text)} for step in finding.provenance]
        result["codeFlows"] = [{"threadFlows": [{"locations": steps}]}]
    own = [block for block in fixes.get(finding.file, ()) if block.touches(finding.line, finding.end_line)]
    if own:
        result["fixes"] = [_fix(finding, own)]
    if finding.suppressed:
        result["suppressions"] = [{"kind": "inSource"}]
    return result


def _fix(finding: Finding, blocks: list[Block]) -> dict[str, Any]:
    """The lines of the patch that are this finding's. It takes the other lines of the patch with it to be right."""
    replaced = [
        {
            "deletedRegion": {
                "startLine": block.old,
                "startColumn": 1,
                "endLine": block.old + len(block.removed),
                "endColumn": 1,
            },
            "insertedContent": {"text": "".join(f"{line}\n" for line in block.added)},
        }
        for block in blocks
    ]
    change = {"artifactLocation": _artifact(finding.file), "replacements": replaced}
    return {"description": {"text": f"{finding.message}; `to-fsdp2 apply` makes all changes"}, "artifactChanges": [change]}


def _notification(error: FileError) -> dict[str, Any]:
    return {
        "level": "error",
        "message": {"text": error.message},
        "locations": [_place(error.file, error.line)],
    }


def _place(file: str, line: int | None, text: str | None = None) -> dict[str, Any]:
    location: dict[str, Any] = {"artifactLocation": _artifact(file)}
    if line is not None:
        location["region"] = {"startLine": line}
    place: dict[str, Any] = {"physicalLocation": location}
    if text is not None:
        place["message"] = {"text": text}
    return place


def _artifact(file: str) -> dict[str, str]:
    return {"uri": quote(file_of(file), errors="surrogateescape")}
