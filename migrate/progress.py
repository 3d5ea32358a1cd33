"""How far a run is: a bar on a terminal, silence everywhere else."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from rich.console import Console


class Progress(Protocol):
    """Told of every stage and of every file in it."""

    def stage(self, name: str, total: int) -> None: ...

    def advance(self, count: int = 1) -> None: ...


class Silent:
    """No output: pipes, files and CI logs."""

    def stage(self, name: str, total: int) -> None:
        """Nothing is shown."""

    def advance(self, count: int = 1) -> None:
        """Nothing is shown."""


@contextmanager
def progress_on(console: Console) -> Iterator[Progress]:
    """A bar where `console` is an interactive terminal; it disappears when the work is done."""
    if not console.is_terminal or console.is_dumb_terminal:
        yield Silent()
        return
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn
    from rich.progress import Progress as RichProgress

    # No refresh thread: worker processes are forked while the bar is shown, and forking with threads can
    # deadlock.
    bar = RichProgress(
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        console=console,
        transient=True,
        auto_refresh=False,
    )
    with bar:
        yield _Bar(bar)


class _Bar:
    def __init__(self, bar) -> None:
        self.bar = bar
        self.task = None
        self.shown = 0.0

    def stage(self, name: str, total: int) -> None:
        if self.task is not None:
            self.bar.remove_task(self.task)
        self.task = self.bar.add_task(name, total=total)
        self.bar.refresh()

    def advance(self, count: int = 1) -> None:
        self.bar.advance(self.task, count)
        if time.monotonic() - self.shown > 0.1:
            self.shown = time.monotonic()
            self.bar.refresh()
