"""What people see: text that shows and never acts, and output that outlives a reader who has gone."""

from __future__ import annotations

import os
import re
import signal
import sys
from typing import TextIO

from rich.console import Console

from .signals import Ended

_ACTING = re.compile(
    "[\x00-\x1f\x7f-\x9f\xad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f"
    "\ufeff\ufff9-\ufffb\ud800-\udfff\U000e0000-\U000e0fff]"
)
"""Control characters, what turns the direction of a text, what is not seen, and bytes that are no text."""


def printable(text: str) -> str:
    """`text` with every character that would act on a terminal, or hide, shown as an escape, line ends too."""
    return _ACTING.sub(lambda match: match[0].encode("unicode_escape", "surrogatepass").decode("ascii"), text)


def printable_lines(text: str) -> list[str]:
    """The lines of a text, each printable but for its tabs."""
    return ["\t".join(map(printable, line.removesuffix("\r").split("\t"))) for line in text.split("\n")]


class Terminal(Console):
    """A console that falls silent where nobody reads any more: the run and its exit code do not depend on that."""

    def on_broken_pipe(self) -> None:
        """The reader has gone, as in `| head`."""
        self.quiet = True
        silence(sys.stderr if self.stderr else sys.stdout)


def write_stdout(data: bytes) -> None:
    """Bytes as they are: a patch holds every encoding that its files have."""
    try:
        sys.stdout.flush()
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()
    except BrokenPipeError:
        silence(sys.stdout)


def say(line: str) -> None:
    """A line for people, beside the document."""
    try:
        print(printable(line), file=sys.stderr, flush=True)
    except BrokenPipeError:
        silence(sys.stderr)


def announce(line: str) -> None:
    """A line without which a run must not go on; raises `Ended` when nobody reads it any more."""
    try:
        print(printable(line), file=sys.stderr, flush=True)
    except BrokenPipeError as error:
        silence(sys.stderr)
        raise Ended(signal.SIGPIPE) from error


def silence(stream: TextIO) -> None:
    """Let nothing more be written; what is left in the buffer must not raise at the end."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, stream.fileno())
    os.close(nowhere)
