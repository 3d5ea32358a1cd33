"""Signals that end a run: raised as an exception, or kept waiting while files are being replaced."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

_ENDING = [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)]


class Ended(BaseException):
    """A signal has asked the run to end. No `KeyboardInterrupt`, which click turns into something else."""

    def __init__(self, number: int, done: str = "") -> None:
        super().__init__(done)
        self.number = number
        self.done = done
        """What had been finished all the same, in words."""


def raise_on_signals() -> None:
    """From here on, a signal that asks for the end raises `Ended`, so that everything is left in order."""
    for number in _ENDING:
        # What `nohup` has switched off stays off.
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, _raise)


def _raise(number: int, frame: FrameType | None) -> None:
    raise Ended(number)


class Waiting:
    """The signal that came while signals were kept waiting."""

    number: int | None = None

    def check(self) -> None:
        """Raise `Ended` when one has come."""
        if self.number is not None:
            raise Ended(self.number)


@contextmanager
def kept_waiting() -> Iterator[Waiting]:
    """Signals that ask for the end are noted only; whoever works in here asks for them where it can stop."""
    waiting = Waiting()
    if threading.current_thread() is not threading.main_thread():
        yield waiting
        return

    def note(number: int, frame: FrameType | None) -> None:
        waiting.number = number

    before = {number: signal.signal(number, note) for number in _ENDING if signal.getsignal(number) is not signal.SIG_IGN}
    try:
        yield waiting
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
