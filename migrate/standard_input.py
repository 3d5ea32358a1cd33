"""One file from stdin, as editors hand it over: `to-fsdp2 diff - --stdin-filename train.py`."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from ..transforms.findings import UserError
from . import git
from .workspace import LARGEST, Workspace

STDIN = "-"
_UNNAMED = "stdin.py"


def is_stdin(paths: list[str] | None, filename: str | None) -> bool:
    """Whether stdin is what is to be looked at. Raises UserError where it is named with something else."""
    named = paths or []
    if STDIN in named and len(named) > 1:
        raise UserError("`-` stands for stdin and cannot be joined with other paths")
    if filename is not None and named != [STDIN]:
        raise UserError("--stdin-filename names what comes from stdin: give `-` as the path")
    return named == [STDIN]


def open_stdin(filename: str | None) -> Workspace:
    """A workspace of what stdin holds, under the name of the file that it is or will be. Nothing else is looked at."""
    if filename is not None and filename.endswith(".ipynb"):
        raise UserError("a notebook cannot come from stdin: name the file")
    path = Path(os.path.realpath(filename or _UNNAMED))
    here = Path(os.path.realpath(os.getcwd()))
    root = git.repository_of(path.parent) or (here if here in path.parents else path.parent)
    label = path.relative_to(root).as_posix()
    data = sys.stdin.buffer.read(LARGEST + 1)
    return Workspace(root, [path], in_repository=False, files=[label], given={label: data})
