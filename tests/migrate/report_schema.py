"""The JSON contract of scan, diff, apply and check, as a JSON schema."""

from __future__ import annotations

from typing import Any

TEXT = {"type": "string"}
COUNT = {"type": "integer", "minimum": 0}
LINE = {"type": "integer", "minimum": 1}
SCHEMA: dict[str, Any] = {
    "type": "object",
    "additionalProperties": False,
    "required": ["tool", "schema", "kind", "target_torch", "files", "programs", "findings", "errors"],
    "properties": {
        "tool": {"const": "to-fsdp2"},
        "schema": {"const": 2},
        "kind": {"const": "migration"},
        "target_torch": {"type": "string", "pattern": r"^\d+\.\d+$"},
        "files": {
            "type": "object",
            "additionalProperties": COUNT,
            "required": ["seen", "parsed", "changed", "failed"],
            "maxProperties": 4,
        },
        "programs": {
            "type": "array",
            "items": {
                "type": "object",
                "properties": {
                    "entry": TEXT,
                    "files": {"type": "array", "items": TEXT, "minItems": 1},
                    "safe": COUNT,
                    "review": COUNT,
                    "manual": COUNT,
                },
                "required": ["entry", "files", "safe", "review", "manual"],
                "additionalProperties": False,
            },
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
                    "form": {"enum": ["idiom", "fallback", "stop", "note"]},
                    "programs": {"type": "array", "items": TEXT, "minItems": 1},
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
