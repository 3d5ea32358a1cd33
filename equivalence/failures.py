"""Why a run did not end well, as one sentence."""

from __future__ import annotations

import re
import signal
from pathlib import Path

from .launch import Finished, Launch
from .record import Record

ROOT_CAUSE = re.compile(r"Root Cause.*?rank\s*:\s*(\d+).*?exitcode\s*:\s*(-?\d+)", re.DOTALL)
FAILED_RANK = re.compile(r"rank\s*:\s*(\d+).*?exitcode\s*:\s*(-?\d+)", re.DOTALL)
RANK_PREFIX = re.compile(r"^\[rank\d+\]: ?")
EXCEPTION = re.compile(r"(?:[A-Za-z_]\w*\.)*[A-Z]\w*(?:Error|Exception|Interrupt|Exit)\b")
RAISED = re.compile(r"(?:[A-Za-z_]\w*\.)*[A-Z]\w*(?::|$)")
"""Exceptions of other names, where a stack ends."""
END_OF_MESSAGE = re.compile(r"Traceback \(most recent|During handling of|The above exception|\[[WEI]\d{3} |[WEI]\d{4} ")
COLOUR = re.compile(r"\x1b\[[0-9;]*m")
FRAME = re.compile(r' *File "([^"]+)", line (\d+)')
LONGEST = 600
SPAWNED = re.compile(r"torch\.multiprocessing\.spawn\.ProcessRaisedException:")
"""What `mp.spawn` raises: the traceback of the rank comes after it."""
LAST_LINES = 3
TERMINATE = "terminate called without an active exception"
CONSEQUENCE = re.compile(
    r"Connection (?:closed|reset)|Broken pipe|connectFullMesh|recvBytes|Socket Timeout|preamble\.length|enforce fail at .*gloo",
    re.IGNORECASE,
)
"""What the other ranks say when one has died or called another collective: never the cause."""


def failure_of(finished: Finished, launch: Launch, record: Record, timeout: float) -> str | None:
    """A sentence that says what went wrong; None if nothing did."""
    if finished.hung is not None:
        return f"ended after {min(timeout, finished.seconds):.0f} seconds, while {finished.hung}"
    if finished.exit_code == 0 or finished.lingered or ended_after_work(launch, record):
        return None
    text = read_text(launch.logs / "launcher.log")
    rank, code = _first_failure(text, launch, record, finished)
    who = f"rank {rank}" if rank is not None else "it"
    message = _message(rank, launch, record)
    if message and (line := _line(rank, launch)):
        message = f"{message} (at {line})"
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
    return any(TERMINATE in text for text in error_outputs(launch).values())


def _first_failure(text: str, launch: Launch, record: Record, finished: Finished) -> tuple[int | None, int]:
    """The rank that failed first and its exit code (negative: the signal that killed it)."""
    found = ROOT_CAUSE.search(text)
    if found is None:
        code = finished.exit_code
        return _explaining(launch, record), 128 - code if code > 128 else code
    rank, code = int(found[1]), int(found[2])
    codes = {int(other): int(its) for other, its in FAILED_RANK.findall(text)}
    # torchrun names the process whose end it noticed first, which may have died of another one's end.
    if code > 0:
        message = _message(rank, launch, record)
        killed = [other for other, its in codes.items() if its in (-signal.SIGKILL, -signal.SIGSEGV)]
        explaining = _explaining(launch, record)
        if explaining is not None:
            return explaining, codes.get(explaining, code) if codes.get(explaining, code) > 0 else code
        if killed and (not message or CONSEQUENCE.search(message)):
            return killed[0], codes[killed[0]]
    return rank, code


def _explaining(launch: Launch, record: Record) -> int | None:
    """The rank whose error came first, of those whose error is no consequence of another rank's end."""
    found: list[tuple[float, int]] = []
    for rank in sorted(set(error_outputs(launch)) | set(record.ends)):
        message = _exception(rank, launch, record)
        if message and not CONSEQUENCE.search(message):
            found.append((record.ends[rank]["time"] if rank in record.ends else float("inf"), rank))
    return min(found, default=(0.0, None))[1]


def _killed(number: int) -> str:
    name = signal.Signals(number).name if number in set(signal.Signals) else str(number)
    why = ", as the kernel does when memory runs out" if number == signal.SIGKILL else ""
    return f"was killed by {name}{why}"


def _message(rank: int | None, launch: Launch, record: Record) -> str | None:
    """What a rank said about its end: its exception, else the last lines that it wrote."""
    found = _exception(rank, launch, record)
    if found is not None or rank is None:
        return found
    for text in (error_outputs(launch).get(rank, ""), _outputs(launch, "stdout.log").get(rank, "")):
        lines = [line.strip() for line in text.splitlines() if line.strip()]
        if lines:
            return _shortened(" ".join(lines[-LAST_LINES:]))
    return None


def _exception(rank: int | None, launch: Launch, record: Record) -> str | None:
    """The exception of a rank, as recorded or as it stands in its error output, in full sentences."""
    end = record.ends.get(rank) if rank is not None else None
    if end is not None and end["error"]:
        return _shortened(end["error"])
    texts = error_outputs(launch)
    text = texts.get(rank, "") if rank is not None else None
    if text is None:
        text = read_text(launch.logs / "launcher.log") if not texts else ""
    return first_exception(text)


def first_exception(text: str) -> str | None:
    """The first exception that a traceback in the text ends with, all lines of its message joined."""
    lines = text.splitlines()
    bare = _bare(text)
    number = _end_of_first_stack(bare)
    if number is None:
        return None
    message = [bare[number]]
    for more in range(number + 1, len(lines)):
        # Between the lines of one rank there may be those of others, which do not have its name in front.
        stranger = bare[number] != lines[number] and bare[more] == lines[more]
        if stranger or not bare[more].strip() or END_OF_MESSAGE.match(bare[more]):
            break
        message.append(bare[more].strip())
    return _shortened(" ".join(message))


def _bare(text: str) -> list[str]:
    return [RANK_PREFIX.sub("", line) for line in text.splitlines()]


def _end_of_first_stack(bare: list[str]) -> int | None:
    """The number of the line that names the first exception."""
    for number, line in enumerate(bare):
        ends_stack = number > 0 and bare[number - 1].startswith((" ", "\t")) and RAISED.match(line)
        if (ends_stack or EXCEPTION.match(line)) and not SPAWNED.match(line):
            return number
    return None


def _line(rank: int | None, launch: Launch) -> str | None:
    """`file:line` of the side's own code, innermost, in the stack of the first exception."""
    texts = error_outputs(launch)
    text = texts.get(rank, "") if rank is not None else "" if texts else read_text(launch.logs / "launcher.log")
    bare = _bare(text)
    end = _end_of_first_stack(bare)
    for line in reversed(bare[:end] if end is not None else []):
        if line.startswith("Traceback (most recent"):
            break
        frame = FRAME.match(line)
        path = Path(frame[1]) if frame is not None else None
        if frame is not None and path is not None and path.is_relative_to(launch.place.top):
            return f"{path.relative_to(launch.place.top).as_posix()}:{frame[2]}"
    return None


def _shortened(text: str) -> str:
    text = " ".join(COLOUR.sub("", text).split())
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 1]}…"


def _progress(rank: int | None, record: Record) -> str:
    done = sum(rank in events for events in record.steps.values()) if rank is not None else record.step_count
    return f", after {done} steps" if record.starts else ", before training began"


def error_outputs(launch: Launch) -> dict[int, str]:
    """Error output by rank, as torchrun wrote it; for one machine the local rank is the rank."""
    return _outputs(launch, "stderr.log")


def _outputs(launch: Launch, name: str) -> dict[int, str]:
    return {int(path.parent.name): read_text(path) for path in launch.logs.glob(f"*/attempt_0/*/{name}")}


def read_text(path: Path) -> str:
    return path.read_text(encoding="utf-8", errors="replace") if path.exists() else ""


def log_tail(launch: Launch, lines: int = 40) -> str:
    """The last lines of the error output, for the report: of the launcher, or of every rank that wrote some."""
    texts = {f"rank {rank}": text for rank, text in sorted(error_outputs(launch).items()) if text.strip()}
    texts = texts or {"launcher": read_text(launch.logs / "launcher.log")}
    parts = ["\n".join([f"--- {name}", *text.splitlines()[-lines:]]) for name, text in texts.items()]
    return "\n".join(parts)
