"""What the tool asks git: whether the tree is clean, which ignored files are tracked, which ignore rules count.

A repository's configuration names programs that git runs (`core.fsmonitor`, `filter.*.clean`, hooks and more), so git
never gets to see it: it works on a folder made here, which borrows the repository's objects, refs and index, and whose
configuration is a short list of settings that are values. The user's own configuration counts as it always does.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from ..transforms.findings import UserError
from .reading import read_small

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
_OVERRIDDEN = ("core.fsmonitor=false", "core.hooksPath=/dev/null", "core.untrackedCache=false", "submodule.recurse=false")
_LONGEST = 120
"""Seconds; a pipe in the place of a file would make git wait for ever."""


def repository_of(path: Path) -> Path | None:
    """The root of the git repository or worktree that holds `path`, None outside of one."""
    for folder in (path, *path.parents):
        # A worktree and a submodule have a `.git` file in place of the folder.
        if (folder / ".git").exists():
            return folder
    return None


def tracked_files(repository: Path) -> list[Path]:
    """Python files and notebooks that git tracks; none where git cannot say."""
    result = _git(repository, "ls-files", "-z", "--cached", "--", "*.py", "*.ipynb")
    if result is None or result.returncode != 0:
        return []
    return [repository / os.fsdecode(name) for name in result.stdout.split(b"\0") if name]


def files_at(repository: Path, revision: str) -> dict[str, str] | None:
    """The Python files and notebooks of a commit: POSIX path → object; None where there is no such commit."""
    if revision.startswith("-"):
        return None
    result = _git(repository, "ls-tree", "-r", "-z", "--full-tree", revision)
    if result is None or result.returncode != 0:
        return None
    found = {}
    for entry in filter(None, result.stdout.split(b"\0")):
        about, _, path = entry.partition(b"\t")
        mode, kind, name = about.decode().split()
        if kind == "blob" and mode != "120000" and path.endswith((b".py", b".ipynb")):
            found[os.fsdecode(path)] = name
    return found


def contents(repository: Path, objects: list[str]) -> list[bytes]:
    """The bytes of objects that are there."""
    asked = "".join(f"{name}\n" for name in objects).encode()
    result = _git(repository, "cat-file", "--batch", given=asked) if objects else None
    found = []
    rest = result.stdout if result is not None else b""
    for _ in objects:
        head, _, rest = rest.partition(b"\n")
        size = int(head.split()[2])
        found.append(rest[:size])
        rest = rest[size + 1 :]
    return found


def exclude_files(repository: Path) -> list[Path]:
    """The ignore files beside .gitignore that count for a repository, the weaker one first; they need not exist."""
    result = _git(repository, "config", "-z", "--type=path", "--get", "core.excludesFile")
    if result is not None and result.returncode == 0:
        user = repository / os.fsdecode(result.stdout.rstrip(b"\0"))
    else:
        settings = os.environ.get("XDG_CONFIG_HOME") or os.path.expanduser("~/.config")
        user = Path(settings, "git", "ignore")
    folders = _folders(repository)
    return [user] if folders is None else [user, folders.common / "info" / "exclude"]


def changed_files(repository: Path, files: Iterable[Path]) -> list[str]:
    """What an edit could be mixed up with: changed tracked files, and those of `files` that are not tracked.

    Of a submodule, or another repository inside, only `files` count. POSIX paths relative to the repository. Raises
    UserError when git cannot say.
    """
    by_folder: dict[Path, list[Path]] = {}
    for file in files:
        by_folder.setdefault(file.parent, []).append(file)
    by_repository: dict[Path, set[Path]] = {repository: set()}
    for folder, inside in by_folder.items():
        by_repository.setdefault(repository_of(folder) or repository, set()).update(inside)
    found: set[Path] = set()
    for own, inside in by_repository.items():
        changed = _changed(own)
        found |= inside - set(tracked_files(own)) | (changed if own == repository else changed & inside)
    return sorted(file.relative_to(repository).as_posix() for file in found)


def _changed(repository: Path) -> set[Path]:
    # Untracked files are not asked for: git would open every ignore file, were it a pipe.
    result = _git(
        repository, "status", "--porcelain=v1", "-z", "--no-renames", "--untracked-files=no", "--ignore-submodules=dirty"
    )
    if result is None:
        raise UserError("git is not installed, so the tree cannot be checked; --allow-dirty goes on without")
    if result.returncode != 0:
        reason = result.stderr.decode(errors="replace").strip() or "no reason given"
        raise UserError(f"git cannot tell whether the tree is clean: {reason.splitlines()[0]}")
    return {repository / os.fsdecode(entry[3:]) for entry in result.stdout.split(b"\0") if entry}


@dataclass(frozen=True)
class _Folders:
    """Where a repository keeps its state: `own` is a worktree's, `common` what its worktrees share."""

    own: Path
    common: Path


def _folders(repository: Path) -> _Folders | None:
    own = repository / ".git"
    if not own.is_dir():
        pointer = read_small(own)
        if pointer is None or not pointer.startswith(b"gitdir: "):
            return None
        own = repository / os.fsdecode(pointer[len(b"gitdir: ") :].rstrip(b"\r\n"))
    shared = read_small(own / "commondir")
    return _Folders(own, own / os.fsdecode(shared.rstrip(b"\r\n")) if shared else own)


def _git(repository: Path, *arguments: str, given: bytes = b"") -> subprocess.CompletedProcess[bytes] | None:
    """The finished command, None where git is not installed."""
    with borrowed(repository) as git:
        return git(*arguments, given=given)


class Git(Protocol):
    """Runs one command of git, and gives it finished; None where git is not installed."""

    def __call__(self, *arguments: str, given: bytes = b"") -> subprocess.CompletedProcess[bytes] | None: ...


@contextmanager
def borrowed(repository: Path, own_index: bool = False) -> Iterator[Git]:
    """git on a folder of our own that borrows the repository's objects and refs; its index too, unless one of its own is asked
    for, which is empty at first."""
    program = shutil.which("git")
    folders = _folders(repository)
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
        yield lambda *arguments, given=b"": _run(program, folder, repository, *overridden, *arguments, given=given)


@contextmanager
def _stand_in(program: str, repository: Path, folders: _Folders) -> Iterator[Path]:
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


def _run(program: str, folder: Path, repository: Path, *arguments: str, given: bytes = b"") -> subprocess.CompletedProcess[bytes]:
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
            command, cwd=repository, env=environment, input=given, capture_output=True, check=False, timeout=_LONGEST
        )
    return subprocess.CompletedProcess(command, 128, b"", b"it did not answer within two minutes")
