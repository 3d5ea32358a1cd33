"""git that never sees a repository's configuration.

That configuration names programs that git runs (`core.fsmonitor`, `filter.*.clean`, hooks and more), so git works on a folder
made here, which borrows the repository's objects, refs and index, and whose configuration is a short list of settings that are
values. The user's own configuration counts as it always does.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from .small_files import read_small

_BOOLEAN = ("true", "false", "yes", "no", "on", "off", "1", "0", "")
_HARMLESS = {
    "core.filemode": _BOOLEAN,
    "core.symlinks": _BOOLEAN,
    "core.ignorecase": _BOOLEAN,
    "core.precomposeunicode": _BOOLEAN,
    "core.trustctime": _BOOLEAN,
    "core.checkstat": ("default", "minimal"),
    "core.autocrlf": (*_BOOLEAN, "input"),
    "core.eol": ("lf", "crlf", "native"),
    "extensions.objectformat": ("sha1", "sha256"),
    "extensions.refstorage": ("files", "reftable"),
}
"""Settings that change how files are compared, with the values that they may have. Nothing else is taken over but
`core.excludesFile`, the path of a file that is read."""

_FREE = ("user.name", "user.email")
_BORROWED = ("objects", "refs", "reftable", "packed-refs", "shallow", "info/exclude", "info/attributes")
_OVERRIDDEN = (
    "core.fsmonitor=false", "core.hooksPath=/dev/null", "core.untrackedCache=false", "core.splitIndex=false",
    "submodule.recurse=false",
)  # fmt: skip
_LONGEST = 120
"""Seconds; a pipe in the place of a file would make git wait for ever."""


@dataclass(frozen=True)
class Folders:
    """Where a repository keeps its state: `own` is a worktree's, `common` what its worktrees share."""

    own: Path
    common: Path


def folders_of(repository: Path) -> Folders | None:
    own = repository / ".git"
    if not own.is_dir():
        pointer = read_small(own)
        if pointer is None or not pointer.startswith(b"gitdir: "):
            return None
        own = repository / os.fsdecode(pointer[len(b"gitdir: ") :].rstrip(b"\r\n"))
    shared = read_small(own / "commondir")
    return Folders(own, own / os.fsdecode(shared.rstrip(b"\r\n")) if shared else own)


class Git(Protocol):
    """Runs one command of git, and gives it finished; None where git is not installed."""

    def __call__(self, *arguments: str, given: bytes = b"") -> subprocess.CompletedProcess[bytes] | None: ...


@contextmanager
def borrowed(repository: Path, own_index: bool = False, at: Path | None = None) -> Iterator[Git]:
    """git on a folder of our own that borrows the repository's objects and refs; its index too, unless one of its own is asked
    for, which is empty at first. Commands run in the folder ``at``, by default the repository's root."""
    program = shutil.which("git")
    folders = folders_of(repository)
    # With `.` on the search path, a repository could bring a git of its own.
    if program is None or not os.path.isabs(program):
        yield lambda *arguments, given=b"": None
        return
    if folders is None:
        yield lambda *arguments, given=b"": subprocess.CompletedProcess(arguments, 128, b"", b"the .git file names no folder")
        return
    with _stand_in(program, repository, folders) as folder:
        if own_index:
            (folder / "index").unlink(missing_ok=True)
        overridden = [part for key in _OVERRIDDEN for part in ("-c", key)]
        yield lambda *arguments, given=b"": _run(program, folder, repository, *overridden, *arguments, given=given, at=at)


@contextmanager
def _stand_in(program: str, repository: Path, folders: Folders) -> Iterator[Path]:
    """A git folder for one command: the repository's objects, refs and index under a configuration of our own."""
    with tempfile.TemporaryDirectory(prefix="to-fsdp2-git-") as name:
        folder = Path(name)
        (folder / "info").mkdir()
        parts = {part: folders.common / part for part in _BORROWED}
        parts |= {part.name: part for part in (folders.own / "index", *folders.own.glob("sharedindex.*"))}
        for part, place in parts.items():
            if place.is_dir() or place.is_file():
                (folder / part).symlink_to(place.absolute())
        (folder / "HEAD").write_bytes(read_small(folders.own / "HEAD") or b"")
        (folder / "config").write_bytes(b"")
        settings: dict[str, str] = {}
        for file in (folders.common / "config", folders.own / "config.worktree"):
            if (text := read_small(file)) is not None:
                (folder / "theirs").write_bytes(text)
                settings |= _harmless(program, folder, repository)
        extended = any(key.startswith("extensions.") for key in settings)
        settings["core.repositoryformatversion"] = "1" if extended else "0"
        (folder / "config").write_text("".join(_setting(*item) for item in settings.items()), errors="surrogateescape")
        yield folder


def _harmless(program: str, folder: Path, repository: Path) -> dict[str, str]:
    """The settings of a configuration file that are taken over."""
    listed = _run(program, folder, repository, "config", "--file", str(folder / "theirs"), "--no-includes", "-z", "--list")
    found = {}
    for entry in filter(None, listed.stdout.split(b"\0")):
        key, _, value = os.fsdecode(entry).partition("\n")
        if value.lower() in _HARMLESS.get(key, ()):
            found[key] = value.lower() or "true"
        elif key in _FREE or (key == "core.excludesfile" and (repository / os.path.expanduser(value)).is_file()):
            found[key] = value
    return found


def _setting(key: str, value: str) -> str:
    section, _, name = key.partition(".")
    escaped = value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'[{section}]\n\t{name} = "{escaped}"\n'


def _run(
    program: str, folder: Path, repository: Path, *arguments: str, given: bytes = b"", at: Path | None = None
) -> subprocess.CompletedProcess[bytes]:
    # A hook of git's, which may be where this runs, has variables set that speak of another repository or index.
    inherited = {key: value for key, value in os.environ.items() if not key.startswith("GIT_") or "CONFIG" in key}
    environment = {
        **inherited,
        "GIT_DIR": str(folder),
        "GIT_WORK_TREE": str(repository),
        "GIT_OPTIONAL_LOCKS": "0",
        "GIT_NO_LAZY_FETCH": "1",
        "GIT_TERMINAL_PROMPT": "0",
        "LC_ALL": "C",
    }
    command = [program, *arguments]
    with suppress(subprocess.TimeoutExpired):
        return subprocess.run(
            command, cwd=at or repository, env=environment, input=given, capture_output=True, check=False, timeout=_LONGEST
        )
    return subprocess.CompletedProcess(command, 128, b"", b"it did not answer within two minutes")
