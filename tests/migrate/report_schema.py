"""The JSON contract of scan, diff, apply and check, as a JSON schema."""

from __future__ import annotations

from typing import Any

TEXT = {"type": "string"}
LINE = {"type": "integer", "minimum": 1}
SCHEMA: dict[str, Any] = {
    "type": "object",
    "additionalProperties": False,
    "required": ["tool", "schema", "kind", "target_torch", "files", "findings", "errors"],
    "properties": {
        "tool": {"const": "to-fsdp2"},
        "schema": {"const": 1},
        "kind": {"const": "migration"},
        "target_torch": {"type": "string", "pattern": r"^\d+\.\d+$"},
        "files": {
            "type": "object",
            "additionalProperties": {"type": "integer", "minimum": 0},
            "required": ["seen", "parsed", "changed", "failed"],
            "maxProperties": 4,
        },
        "findings": {
            "type": "array",
            "items": {
                "type": "object",
                "additionalProperties": False,
                "properties": {
                    "id": TEXT,
                    "rule": {"type": "string", "pattern": r"^FS\d{3}$"},
                    "level": {"enum": ["safe", "review", "manual", "ok"]},
                    "file": TEXT,
                    "line": LINE,
                    "column": LINE,
                    "end_line": LINE,
                    "end_column": LINE,
                    "symbol": TEXT,
                    "message": TEXT,
                    "why": TEXT,
                    "advice": TEXT,
                    "group": {"type": ["string", "null"]},
                    "blocked_by": {"type": ["string", "null"], "pattern": r":\d+$"},
                    "provenance": {
                        "type": "array",
                        "items": {
                            "type": "object",
                            "properties": {"file": TEXT, "line": LINE, "text": TEXT},
                            "required": ["file", "line", "text"],
                            "additionalProperties": False,
                        },
                    },
                    "suppressed": {"type": "boolean"},
                },
            },
        },
        "errors": {
            "type": "array",
            "items": {
                "type": "object",
                "properties": {"file": TEXT, "line": {"type": ["integer", "null"]}, "message": TEXT},
                "required": ["file", "line", "message"],
                "additionalProperties": False,
            },
        },
    },
}
SCHEMA["properties"]["findings"]["items"]["required"] = sorted(SCHEMA["properties"]["findings"]["items"]["properties"])
