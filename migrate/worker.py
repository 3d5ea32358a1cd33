"""What a worker process does: one file's text in, its facts out.

A module of its own, so that a process that is started afresh can import it.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from pathlib import Path

from ..transforms.engine import extract
from ..transforms.facts.facts import FileFacts
from ..transforms.findings import FileError
from ..transforms.text.source import Source, SourceError
from .collector import paused_collector


def serve() -> None:
    """Prepare a worker: a signal to the whole group is the parent's to answer, and its death is this process's."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def extract_files(root: str, labels: list[str]) -> list[FileFacts | FileError]:
    """Facts of each file, or the reason why there are none; never raises for the sake of a file."""
    with paused_collector():
        return [_extract_file(Path(root), label) for label in labels]


def _extract_file(root: Path, label: str) -> FileFacts | FileError:
    try:
        data = (root / label).read_bytes()
    except OSError as error:
        return FileError(label, None, f"cannot be read: {error.strerror}")
    return extract_text(label, data)


def extract_text(label: str, data: bytes) -> FileFacts | FileError:
    """Facts of a text, or the reason why there are none; never raises for its sake."""
    try:
        return extract(Source.read(label, data))
    except SourceError as error:
        return FileError(label, error.line, error.message)
    except RecursionError:
        return FileError(label, None, "nested too deeply to be analysed")
    except Exception as error:  # one file must never end the run; the entry says what to report
        return FileError(label, None, f"could not be analysed, please report this: {type(error).__name__}: {error}")
