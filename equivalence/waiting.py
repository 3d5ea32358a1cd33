"""What the ranks of a run were doing when it was ended: the collective each one waited in, or the line it was at."""

from __future__ import annotations

import json
import os
import re
import signal
import time
from pathlib import Path
from typing import Any

STACK_SECONDS = 1.0
FRAME = re.compile(r'File "([^"]+)", line (\d+)')


def dump_stacks(record: Path) -> None:
    """Asks every rank that writes a record for its Python stack (SIGUSR2), and gives it a moment to write it."""
    for file in record.glob("rank*.jsonl"):
        with open(file, encoding="utf-8") as lines:
            start = json.loads(lines.readline() or "{}")
        # A rank that is still starting has no process id in its record, and no handler for the signal yet.
        if isinstance(start.get("pid"), int):
            try:
                os.kill(start["pid"], signal.SIGUSR2)
            except ProcessLookupError:
                continue
    time.sleep(STACK_SECONDS)


def describe_waiting(record: Path, top: Path) -> str:
    """One clause a rank: `rank 0 waited in all_reduce … at train.py:41; rank 1 was at train.py:55`."""
    ranks = sorted(record.glob("rank*.waiting"), key=lambda path: (len(path.stem), path.stem))
    if not ranks:
        return "no rank had come as far as starting a process group or a training step"
    return "; ".join(f"rank {file.stem.removeprefix('rank')} {_doing(file, top)}" for file in ranks)


def _doing(file: Path, top: Path) -> str:
    try:
        waiting = json.loads(file.read_text() or "{}")
    except ValueError:
        waiting = {}
    place = _line_of_code(file.with_suffix(".stack"), top)
    at = f" at {place}" if place else ""
    if waiting and not waiting.get("done", True):
        return f"waited in {_collective(waiting)}{_where(waiting, at)}"
    if not waiting:
        return f"was busy{at} and had not entered a collective"
    return f"was busy{at}; its last collective, {_collective(waiting)}, had returned"


def _where(waiting: dict[str, Any], at: str) -> str:
    return f" at {waiting['where']}" if waiting.get("where") else at


def _collective(waiting: dict[str, Any]) -> str:
    size = f", {waiting['bytes']} bytes of {waiting['dtype']}" if waiting.get("bytes") else ""
    return f"{waiting.get('op')} (its collective no. {waiting.get('number')}, step {waiting.get('step')}{size})"


def _line_of_code(stack: Path, top: Path) -> str | None:
    """The innermost frame of the repository's own code in a dumped stack, as file:line."""
    if not stack.exists():
        return None
    for name, line in FRAME.findall(stack.read_text(errors="replace")):
        if Path(name).is_relative_to(top):
            return f"{Path(name).relative_to(top).as_posix()}:{line}"
    return None
