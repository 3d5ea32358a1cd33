"""Where the tool keeps what must outlive a run: journals of unfinished writing, reverse patches, and answers.

It lies outside of the repositories: a journal says which files are to be put back, and nobody but the user may write one.
"""

from __future__ import annotations

import os
import stat
import tempfile
from pathlib import Path

from ..transforms.findings import UserError


def state_folder(name: str) -> Path:
    """A folder of the user's own, made where it is missing. Raises UserError."""
    for base in _candidates():
        folder = base / name
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            if _is_private(base) and os.access(folder, os.W_OK | os.X_OK):
                return folder
        except OSError:
            continue
    raise UserError("no folder can be written to keep the reverse patch in; set XDG_STATE_HOME to one")


def _candidates() -> list[Path]:
    home = os.path.expanduser("~")
    places = [os.environ.get("XDG_STATE_HOME", ""), os.path.join(home, ".local", "state")]
    absolute = [Path(place, "to-fsdp2") for place in places if os.path.isabs(place)]
    return [*absolute[:1], Path(tempfile.gettempdir(), f"to-fsdp2-{os.getuid()}")]


def _is_private(folder: Path) -> bool:
    """Whether nobody else can put files there."""
    status = folder.lstat()
    return stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid() and not status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
