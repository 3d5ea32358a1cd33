"""Why a run did not end well, as one sentence."""

from __future__ import annotations

import re
import signal
from pathlib import Path

from .launch import Finished, Launch
from .record import Record

ROOT_CAUSE = re.compile(r"Root Cause.*?rank\s*:\s*(\d+).*?exitcode\s*:\s*(-?\d+)", re.DOTALL)
EXCEPTION = re.compile(
    r"^(?:\[rank\d+\]: ?)?((?:[A-Za-z_]\w*\.)*[A-Z]\w*(?:Error|Exception|Interrupt|Exit)\b.*)$", re.MULTILINE
)
TERMINATE = "terminate called without an active exception"
CONNECTION = re.compile(
    r"Connection (?:closed|reset)|Broken pipe|connectFullMesh|recvBytes|Socket Timeout", re.IGNORECASE
)
"""What the other ranks say when one has died: a consequence, never the cause."""


def failure_of(finished: Finished, launch: Launch, record: Record, timeout: float) -> str | None:
    """A sentence that says what went wrong; None if nothing did."""
    if finished.hung is not None:
        return f"ended after {timeout:g} seconds, while {finished.hung}"
    if finished.exit_code == 0 or ended_after_work(launch, record):
        return None
    text = read_text(launch.logs / "launcher.log")
    rank, code = _first_failure(text, launch, record, finished)
    who = f"rank {rank}" if rank is not None else "it"
    message = _message(rank, launch, record)
    if code < 0:
        return f"{who} {_killed(-code)}{f' ({message})' if message else ''}{_progress(rank, record)}"
    return f"{who} ended with exit code {code}{f': {message}' if message else ''}{_progress(rank, record)}"


def ended_after_work(launch: Launch, record: Record) -> bool:
    """Whether a process aborted at exit, after all work was done: gloo's threads sometimes do that under load."""
    if not record.ends or any(end["error"] for end in record.ends.values()):
        return False
    steps = {rank: sum(rank in events for events in record.steps.values()) for rank in record.starts}
    if set(steps) != set(range(record.world)) or len(set(steps.values())) != 1:
        return False
    return any(TERMINATE in text for text in _errors(launch).values())


def _first_failure(text: str, launch: Launch, record: Record, finished: Finished) -> tuple[int | None, int]:
    """The rank that failed first and its exit code (negative: the signal that killed it)."""
    found = ROOT_CAUSE.search(text)
    if found is None:
        code = finished.exit_code
        return None, 128 - code if code > 128 else code
    rank, code = int(found[1]), int(found[2])
    # torchrun names the process whose end it noticed first. Where that one only lost its connection, the cause
    # is a rank with an error of another kind.
    message = _message(rank, launch, record)
    if code > 0 and (not message or CONNECTION.search(message)):
        for other in sorted(set(_errors(launch)) | set(record.ends)):
            message = _message(other, launch, record)
            if other != rank and message and not CONNECTION.search(message):
                return other, code
        for other, other_code in re.findall(r"rank\s*:\s*(\d+).*?exitcode\s*:\s*(-?\d+)", text, re.DOTALL):
            if int(other_code) in (-signal.SIGKILL, -signal.SIGSEGV):
                return int(other), int(other_code)
    return rank, code


def _killed(number: int) -> str:
    name = signal.Signals(number).name if number in set(signal.Signals) else str(number)
    why = ", as the kernel does when memory runs out" if number == signal.SIGKILL else ""
    return f"was killed by {name}{why}"


def _message(rank: int | None, launch: Launch, record: Record) -> str | None:
    """The last exception of a rank: as recorded, else the last one in its error output."""
    end = record.ends.get(rank) if rank is not None else None
    if end is not None and end["error"]:
        return str(end["error"]).strip().splitlines()[-1]
    texts = _errors(launch)
    text = texts.get(rank) if rank is not None else None
    if text is None:
        text = read_text(launch.logs / "launcher.log") if not texts else ""
    found = EXCEPTION.findall(text)
    if found:
        return found[-1].strip()
    lines = [line for line in text.splitlines() if line.strip()]
    return lines[-1].strip() if lines and rank is not None else None


def _progress(rank: int | None, record: Record) -> str:
    done = sum(rank in events for events in record.steps.values()) if rank is not None else record.step_count
    return f", after {done} steps" if record.starts else ", before training began"


def _errors(launch: Launch) -> dict[int, str]:
    """Error output by rank, as torchrun wrote it; for one machine the local rank is the rank."""
    return {int(path.parent.name): read_text(path) for path in launch.logs.glob("*/attempt_0/*/stderr.log")}


def read_text(path: Path) -> str:
    return path.read_text(encoding="utf-8", errors="replace") if path.exists() else ""


def log_tail(launch: Launch, lines: int = 40) -> str:
    """The last lines of the error output, for the report: of the launcher, or of every rank that wrote some."""
    texts = {f"rank {rank}": text for rank, text in sorted(_errors(launch).items()) if text.strip()}
    texts = texts or {"launcher": read_text(launch.logs / "launcher.log")}
    parts = ["\n".join([f"--- {name}", *text.splitlines()[-lines:]]) for name, text in texts.items()]
    return "\n".join(parts)
