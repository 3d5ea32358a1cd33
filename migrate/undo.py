"""The way back: the reverse patch of a migration, and what a run that was killed has left."""

from __future__ import annotations

import os
import re
import secrets
import shlex
import time
from collections.abc import Iterable
from pathlib import Path

from .diff import file_patch
from .journal import flush_folder, unfinished_in
from .state import state_folder
from .writer import Change


class ReversePatch:
    """A patch that takes changes back, kept under a name of its own outside of the repository."""

    def __init__(self, root: Path, changes: Iterable[Change]) -> None:
        self._root = root
        folder = state_folder("undo")
        name = re.sub(r"[^\w.-]+", "-", root.name, flags=re.ASCII)[:60] or "root"
        self.path = folder / f"{name}-{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(2)}.patch"
        with self.path.open("xb") as file:
            for change in changes:
                file.write(file_patch(change.label, change.new, change.old))
            file.flush()
            os.fsync(file.fileno())
        flush_folder(folder)

    @property
    def command(self) -> str:
        """What undoes the migration."""
        return f"git -C {shlex.quote(str(self._root))} apply {shlex.quote(str(self.path))}"

    def drop(self) -> None:
        """Nothing was written, so there is nothing to take back."""
        self.path.unlink(missing_ok=True)


def settle_unfinished(root: Path) -> list[str]:
    """Undo what a run that was killed has left half done in a tree; gives lines that say so."""
    lines = []
    for unfinished in unfinished_in(root):
        number, replaced = len(unfinished.entries), unfinished.replaced
        changed_since = unfinished.settle()
        if unfinished.is_done:
            lines.append(f"an earlier run was killed after it had written its {number} files; they stay")
        else:
            what = f"{replaced} of {number} files were written and are as before again" if replaced else "no file was changed"
            lines.append(f"an earlier run was killed while it wrote: {what}")
        lines += [f"{file} has been changed since then and is left as it is" for file in changed_since]
    return lines


def note_on_unfinished(root: Path) -> list[str]:
    """The same in the words of a command that changes nothing."""
    lines = []
    for unfinished in unfinished_in(root):
        if not unfinished.is_done and unfinished.replaced:
            number = len(unfinished.entries)
            lines.append(
                f"a run of `apply` was killed here: {unfinished.replaced} of {number} files are migrated; the next "
                "`apply` puts them back first"
            )
        unfinished.close()
    return lines
