"""Answers that are kept: what a run found is found again without a second look, as long as every byte it rests on is the same.

People scan, then look at the patch, then apply it. An answer is known by the contents of the files, the options and the tool
itself. It lies outside of the repositories, in a folder that is the user's own, with the reverse patches.
"""

from __future__ import annotations

import hashlib
import os
import pickle
import sys
import tempfile
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from ..transforms.engine import Analysis, Options
from ..transforms.findings import FileError
from .state import state_folder

_MOST = 20
"""How many answers are kept; those that were asked for longest ago go."""
_SWITCH = "TO_FSDP2_NO_CACHE"


@dataclass
class Answer:
    """What is known of a repository: how many files were parsed, which of them failed, and what is to be done."""

    parsed: int
    errors: list[FileError]
    analysis: Analysis
    analysed: frozenset[str] = frozenset()
    """The files that facts were gathered from."""
    said: Mapping[str, bool] = field(default_factory=dict)
    """What was asked about files that are no Python code, which the key says nothing of, and what the answer was."""


def key_of(contents: Mapping[str, bytes], paths: Collection[str], links: Mapping[str, str], options: Options) -> str | None:
    """The name under which the answer to a run is kept; None where none is: its options hold what a run has shown."""
    if options.trace is not None or os.environ.get(_SWITCH):
        return None
    digest = hashlib.sha256(_tool().encode())
    digest.update(repr([(name, _stable(value)) for name, value in sorted(vars(options).items())]).encode())
    digest.update(repr((sorted(paths), sorted(links.items()))).encode("utf-8", "surrogateescape"))
    for label, data in sorted(contents.items()):
        digest.update(f"\n{label} {len(data)}\n".encode("utf-8", "surrogateescape"))
        digest.update(data)
    return digest.hexdigest()


def kept_answer(key: str | None) -> Answer | None:
    """The answer that was kept under a name, if it is there and can be read."""
    if key is None:
        return None
    with suppress(Exception):  # whatever is wrong with it, the answer can be found anew
        path = _folder() / key
        answer = pickle.loads(path.read_bytes())  # written by this user, in a folder where nobody else can write
        os.utime(path)
        return answer if isinstance(answer, Answer) else None
    return None


def keep_answer(key: str | None, answer: Answer) -> None:
    """Keeps an answer for the next run; one that cannot be kept is none the worse."""
    if key is None:
        return
    if answer.errors or answer.analysis.errors:
        return  # what failed may have failed for want of memory, or for a moment
    with suppress(Exception):
        folder = _folder()
        with tempfile.NamedTemporaryFile(dir=folder, delete=False) as file:
            try:
                pickle.dump(answer, file)
            except BaseException:
                os.unlink(file.name)
                raise
        os.replace(file.name, folder / key)
        for old in sorted(folder.iterdir(), key=lambda path: path.stat().st_mtime)[:-_MOST]:
            old.unlink()


def _folder() -> Path:
    return state_folder("answers")


def _stable(value: object) -> object:
    return sorted(value) if isinstance(value, frozenset) else value


@cache
def _tool() -> str:
    """The tool as it is now: its version alone does not tell while somebody works on it."""
    root = Path(__file__).parent.parent
    files = sorted(path for folder in ("migrate", "transforms") for path in (root / folder).rglob("*.py"))
    stats = [(str(path), status.st_size, status.st_mtime_ns) for path in files for status in [path.stat()]]
    return repr((sys.version, stats))
