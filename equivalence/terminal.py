"""What `verify` writes for people: progress on stderr while runs go, the verdict at the end."""

from __future__ import annotations

import sys
import time
from typing import TextIO

from rich.console import Console
from rich.text import Text

from .verdict import Bisection, CheckResult, Verdict

STYLES = {"pass": "green", "fail": "bold red", "warn": "yellow", "expected": "yellow", "not compared": "dim"}
VERDICT_STYLES = {"equivalent": "bold green", "different": "bold red", "not judged": "bold yellow"}
MARKS = {"pass": "✓", "fail": "✗", "warn": "!", "expected": "~", "not compared": "-"}
MOST_LINES = 10


class Progress:
    """One line a run: rewritten in place on a terminal, printed at its start and end elsewhere."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self.stream = sys.stderr if stream is None else stream
        self.live = self.stream.isatty()
        self.name = ""
        self.started = 0.0

    def start(self, name: str) -> None:
        """A run begins."""
        self.name, self.started = name, time.monotonic()
        if not self.live:
            self._print(f"{name}: started\n")

    def step(self, count: int) -> None:
        """The run has made `count` optimizer steps."""
        if self.live:
            self._print(f"\r\x1b[K{self.name}: step {count}, {time.monotonic() - self.started:.0f} s")

    def end(self, text: str) -> None:
        """The run is over."""
        seconds = time.monotonic() - self.started
        self._print(f"{chr(13)}\x1b[K" if self.live else "")
        self._print(f"{self.name}: {text} ({seconds:.1f} s)\n")

    def say(self, text: str) -> None:
        """A line of its own, between runs."""
        self._print(f"{text}\n")

    def _print(self, text: str) -> None:
        self.stream.write(text)
        self.stream.flush()


def print_verdict(verdict: Verdict, console: Console) -> None:
    """The verdict with its checks, on a terminal or in a log."""
    for result in verdict.checks:
        _print_check(result, console)
    _print_not_executed(verdict, console)
    for note in verdict.notes:
        console.print(Text(f"  note: {note}", style="dim"), soft_wrap=True)
    for warning in dict.fromkeys(warning for run in verdict.runs.values() for warning in run.warnings):
        console.print(Text(f"  warning: {warning}", style="yellow"), soft_wrap=True)
    for run in verdict.runs.values():
        if run.failure and run.log:
            console.print(Text(f"output of the {run.side} run:", style="bold"))
            text = "\n".join(f"  {line}" for line in run.log.splitlines()[-MOST_LINES:])
            console.print(Text(text, style="dim"), soft_wrap=True)
    console.print(
        Text.assemble((verdict.verdict, VERDICT_STYLES[verdict.verdict]), f": {verdict.reason}"), soft_wrap=True
    )
    if verdict.bisection is not None:
        _print_bisection(verdict.bisection, console)


def _print_bisection(found: Bisection, console: Console) -> None:
    console.print(Text.assemble(("bisected", "bold"), f": {found.sentence}"), soft_wrap=True)
    for change in found.changes:
        place = f"{change.file}:{change.line}" if change.patch else change.file
        console.print(Text(f"    at {place} {' '.join(change.rules)}".rstrip()), soft_wrap=True)
        for line in change.patch[:MOST_LINES]:
            console.print(Text(f"      {line}", style="red" if line[:1] == "-" else "green"), soft_wrap=True)
        if len(change.patch) > MOST_LINES:
            console.print(Text(f"      … {len(change.patch) - MOST_LINES} more lines", style="dim"))


def _print_check(result: CheckResult, console: Console) -> None:
    style = STYLES[result.outcome]
    mark = MARKS[result.outcome] if console.encoding.lower().startswith("utf") else result.outcome[0]
    line = Text.assemble((f"{mark} {result.name:<15} {result.outcome:<13}", style), result.reason)
    console.print(line, soft_wrap=True)
    for place in result.places[:MOST_LINES]:
        console.print(Text(f"    at {place}"), soft_wrap=True)
    for cause in result.causes[:3]:
        console.print(Text(f"    likely: {cause}", style="italic"), soft_wrap=True)


def _print_not_executed(verdict: Verdict, console: Console) -> None:
    for entry in verdict.not_executed[:MOST_LINES]:
        console.print(Text(f"  not executed: {entry.file}: {ranges(entry.lines)}", style="dim"), soft_wrap=True)
    more = len(verdict.not_executed) - MOST_LINES
    if more > 0:
        console.print(Text(f"  not executed: {more} more files", style="dim"))


def ranges(lines: list[int]) -> str:
    """1, 2, 3, 7 as `1-3, 7`."""
    parts: list[list[int]] = []
    for line in lines:
        if parts and line == parts[-1][-1] + 1:
            parts[-1].append(line)
        else:
            parts.append([line])
    return ", ".join(f"{part[0]}-{part[-1]}" if len(part) > 1 else str(part[0]) for part in parts)
