"""The files that one recorded process writes: events as JSON lines, where it waits, and its stack on demand."""

from __future__ import annotations

import faulthandler
import json
import mmap
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

WAITING_BYTES = 512


class Journal:
    """Opens its files when it is started, so that a process which never trains leaves no trace."""

    def __init__(self, directory: str, describe: Callable[[], dict[str, Any]]) -> None:
        self._directory = Path(directory)
        self._describe = describe
        self._warned: set[str] = set()
        self._forget()
        os.register_at_fork(after_in_child=self._forget)

    def _forget(self) -> None:
        """A forked child (a data loader worker, or a rank of its own) must not write into its parent's files."""
        self._events: IO[str] | None = None
        self._stack: IO[str] | None = None
        self._waiting: mmap.mmap | None = None
        self._pending: list[str] = []

    @property
    def started(self) -> bool:
        return self._events is not None

    def write(self, event: str, **fields: Any) -> None:
        """Add one event; `flush` makes it durable. What comes before `start` follows it, or goes if it never comes."""
        line = json.dumps({"event": event, **fields}) + "\n"
        if self._events is None:
            self._pending.append(line)
        else:
            self._events.write(line)

    def warn(self, text: str) -> None:
        """Record that something could not be recorded, once per text."""
        if text not in self._warned:
            self._warned.add(text)
            self.write("warning", text=text)

    def flush(self) -> None:
        if self._events is not None:
            self._events.flush()

    def waiting(self, fields: dict[str, Any]) -> None:
        """Replace the content of the side file that says which collective this rank is in."""
        if self._waiting is None:
            return
        text = json.dumps(fields).encode()[: WAITING_BYTES - 1]
        self._waiting[:] = text.ljust(WAITING_BYTES - 1) + b"\n"

    def start(self) -> None:
        """Open the files and write the `start` event, unless that has been done."""
        if self._events is not None:
            return
        description = self._describe()
        self._directory.mkdir(parents=True, exist_ok=True)
        name, events = self._claim(description["rank"])
        self._events = events
        self._waiting = _mapped(self._directory / f"{name}.waiting")
        self._stack = open(self._directory / f"{name}.stack", "w")  # noqa: SIM115 (open until the process ends)
        if hasattr(faulthandler, "register"):
            faulthandler.register(signal.SIGUSR2, self._stack, all_threads=True, chain=False)
        self.write("start", **description, pid=os.getpid(), time=time.time())
        for line in self._pending:
            events.write(line)
        self._pending.clear()
        self.flush()

    def _claim(self, rank: int) -> tuple[str, IO[str]]:
        """Create `rank{r}.jsonl`, or `rank{r}-{k}.jsonl` where another process of the same rank was first."""
        further = 0
        while True:
            name = f"rank{rank}-{further}" if further else f"rank{rank}"
            try:
                return name, open(self._directory / f"{name}.jsonl", "x", encoding="utf-8")
            except FileExistsError:
                further += 1


def _mapped(path: Path) -> mmap.mmap:
    """A file in memory: updating it costs about as much as an assignment, and it survives a killed process."""
    path.write_bytes(b" " * (WAITING_BYTES - 1) + b"\n")
    with open(path, "r+b") as file:
        return mmap.mmap(file.fileno(), WAITING_BYTES)


def uncaught_error() -> str | None:
    """The exception that is ending this process, if one is: the first of a chain, and what became of it."""
    last = getattr(sys, "last_value", None)
    if last is None:
        return None
    first = last
    while (before := first.__cause__ or (None if first.__suppress_context__ else first.__context__)) is not None:
        first = before
    text = f"{type(first).__name__}: {first}"
    return text if first is last else f"{text} (then {type(last).__name__}: {last})"
