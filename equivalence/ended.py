"""Ranks that have done all their work and do not leave.

The threads of gloo's process groups drop what they held when the interpreter ends: one of them may then wait for the
interpreter's lock, which the main thread holds while it waits for that thread.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

LINGERING_SECONDS = 30.0
TAIL_BYTES = 1 << 16


def ended_at(record: Path) -> float | None:
    """When the last of all ranks came to its end without an error; None while one has not, or failed."""
    times: list[float] = []
    world = 0
    for path in record.glob("rank*.jsonl"):
        end = _last_event(path)
        if end.get("event") != "end" or end.get("error"):
            return None
        times.append(float(end["time"]))
        world = world or _world(path)
    return max(times) if times and len(times) == world else None


def _last_event(path: Path) -> dict[str, Any]:
    with open(path, "rb") as file:
        file.seek(max(0, os.path.getsize(path) - TAIL_BYTES))
        lines = file.read().rstrip(b"\n").splitlines()
    return _event(lines[-1]) if lines else {}


def _world(path: Path) -> int:
    with open(path, "rb") as file:
        events = (_event(line) for line in file if b'"start"' in line)
        return next((int(event["world"]) for event in events if event.get("event") == "start"), 0)


def _event(line: bytes) -> dict[str, Any]:
    try:
        return json.loads(line)
    except ValueError:
        return {}
