"""Reading files that a repository may have put in place of what is expected there."""

from __future__ import annotations

import os
import stat
from pathlib import Path

SMALL = 1024 * 1024
"""Bytes. Ignore files, requirements and git's own small files are far below."""


def read_small(path: str | os.PathLike[str], limit: int = SMALL) -> bytes | None:
    """The bytes of a small regular file; None for all else.

    A pipe would be waited on for ever, and a device such as /dev/zero never ends.
    """
    try:
        status = os.stat(path)
        if not stat.S_ISREG(status.st_mode) or status.st_size > limit:
            return None
        with open(path, "rb") as file:
            return file.read(limit)
    except (OSError, ValueError):
        return None


def read_small_text(path: Path, limit: int = SMALL) -> str | None:
    """The text of a small regular file, undecodable bytes escaped; None for all else."""
    data = read_small(path, limit)
    return None if data is None else data.decode("utf-8", "surrogateescape")
