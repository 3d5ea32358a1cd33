"""From the paths that a user names to the Python files they stand for."""

from __future__ import annotations

import glob
import os
import stat
from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from ..transforms.findings import FileError, UserError
from . import git
from .ignore import IgnoreRules, is_default_excluded, is_ignored, read_ignore_file, rules_above
from .writer import is_inside

LARGEST = 2 * 1024 * 1024
"""Bytes. A syntax tree with its positions takes some thousand times its text, and half a minute for this much; the longest
files that people write are half as long."""
LARGEST_NOTEBOOK = 64 * 1024 * 1024
"""Bytes. Most of a large notebook are pictures."""


@dataclass
class Workspace:
    """The files of one run. `root` is what labels are relative to: the git repository where there is one."""

    root: Path
    paths: list[Path]
    """What the user named, absolute."""
    in_repository: bool
    exclude: list[IgnoreRules] = field(default_factory=list)
    files: list[str] = field(default_factory=list)
    """Labels: POSIX paths relative to `root`, sorted."""
    notebooks: list[str] = field(default_factory=list)
    links: dict[str, str] = field(default_factory=dict)
    """Symbolic links inside the tree and what they lead to; of folders, both end with a slash."""
    errors: list[FileError] = field(default_factory=list)
    given: dict[str, bytes] = field(default_factory=dict)
    """Python that is not what lies on disk under its label: what came from stdin."""

    def path(self, label: str) -> Path:
        """Where a label lies."""
        return self.root / label

    def display(self, label: str) -> str:
        """A label as reports show it: relative to the working directory."""
        return Path(os.path.relpath(self.root / label)).as_posix()

    def read(self, label: str) -> bytes:
        """A file's bytes; raises OSError."""
        given = self.given.get(label)
        return self.path(label).read_bytes() if given is None else given


def open_workspace(paths: list[str], exclude: list[IgnoreRules]) -> Workspace:
    """The Python files below `paths` (files, folders or globs), without what is ignored or excluded.

    Raises UserError for a path that does not exist.
    """
    named = [path for argument in paths for path in _named(argument)]
    repository = _common_repository(named)
    root = repository or _common_folder(named)
    workspace = Workspace(root, named, in_repository=repository is not None, exclude=exclude)
    walk = _Walk(workspace, repository, exclude)
    for path in named:
        walk.visit_named(path)
    workspace.files.sort()
    workspace.notebooks.sort()
    return workspace


def _named(argument: str) -> list[Path]:
    if os.path.lexists(argument):
        return [_absolute(argument)]
    found = sorted(glob.glob(argument, recursive=True)) if glob.has_magic(argument) else []
    if not found:
        raise UserError(f"no such file or folder: {argument}")
    return [_absolute(path) for path in found]


def _absolute(path: str) -> Path:
    """Without `..` and symbolic links in the folders; a link that is itself named stays a link."""
    absolute = os.path.abspath(path)
    if os.path.isdir(absolute):
        return Path(os.path.realpath(absolute))
    return Path(os.path.realpath(os.path.dirname(absolute)), os.path.basename(absolute))


def _common_repository(named: list[Path]) -> Path | None:
    repositories = {git.repository_of(path) for path in named}
    return repositories.pop() if len(repositories) == 1 else None


def _common_folder(named: list[Path]) -> Path:
    current = Path(os.path.realpath(os.getcwd()))
    if all(path == current or current in path.parents for path in named):
        return current
    common = Path(os.path.commonpath(named))
    return common if common.is_dir() else common.parent


class _Walk:
    """One walk over all named paths; a file that several names or links lead to is taken once."""

    def __init__(self, workspace: Workspace, repository: Path | None, exclude: list[IgnoreRules]) -> None:
        self.workspace = workspace
        self.repository = repository
        self.exclude = exclude
        self.tracked_files = sorted(map(str, git.tracked_files(repository))) if repository else []
        self.tracked = self._with_folders()
        self.seen: dict[tuple[int, int], str] = {}

    def visit_named(self, path: Path) -> None:
        if not path.is_dir():
            self._take(path, named=True)
            return
        links = []
        for file in self._files_below(str(path), rules_above(path, self.repository)):
            # Links come last, so that a file inside the repository is known by its own name.
            if file.is_symlink():
                links.append(file)
            else:
                self._take(file)
        for link in links:
            self._take(link)

    def _note_folder(self, link: Path) -> None:
        target = Path(os.path.realpath(link))
        if is_inside(target, self.workspace.root) and target != self.workspace.root:
            self.workspace.links[f"{self._label(link)}/"] = f"{self._label(target)}/"

    def _files_below(self, folder: str, rules: list[IgnoreRules]) -> Iterator[Path]:
        """Python files and notebooks; links to folders are not followed, as in git, but remembered."""
        own = read_ignore_file(folder)
        rules = [*rules, own] if own else rules
        try:
            entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
        except OSError as error:
            self._fail(Path(folder), f"folder cannot be read: {error.strerror}")
            return
        for entry in entries:
            is_folder = entry.is_dir(follow_symlinks=False)
            if entry.is_symlink() and os.path.isdir(entry.path):
                self._note_folder(Path(entry.path))
            if not is_folder and not entry.name.endswith((".py", ".ipynb")):
                continue
            if entry.name.startswith(".#"):  # an editor's lock, a link to nowhere
                continue
            if is_ignored(self.exclude, entry.path, is_folder):
                continue
            if is_folder:
                if is_default_excluded(entry.path, entry.name):
                    continue
                if not is_ignored(rules, entry.path, is_directory=True):
                    yield from self._files_below(entry.path, rules)
                elif entry.path in self.tracked:
                    yield from self._tracked_below(entry.path)
            elif entry.path in self.tracked or not is_ignored(rules, entry.path, is_directory=False):
                yield Path(entry.path)

    def _with_folders(self) -> set[str]:
        """Tracked files, and all folders on the way to them; ignore rules do not speak of these."""
        found = set(self.tracked_files)
        for file in self.tracked_files:
            folder = os.path.dirname(file)
            while folder not in found and folder != str(self.repository):
                found.add(folder)
                folder = os.path.dirname(folder)
        return found

    def _tracked_below(self, folder: str) -> Iterator[Path]:
        prefix = folder + os.sep
        for path in self.tracked_files[bisect_left(self.tracked_files, prefix) :]:
            if not path.startswith(prefix):
                break
            if os.path.isfile(path) and not is_ignored(self.exclude, path, is_directory=False):
                yield Path(path)

    def _take(self, path: Path, named: bool = False) -> None:
        try:
            status = path.stat()
        except OSError as error:
            if named or not (path.is_symlink() and isinstance(error, FileNotFoundError)):  # a link to nowhere has no code
                self._fail(path, f"cannot be read: {error.strerror}")
            return
        if path.is_symlink() and not is_inside(Path(os.path.realpath(path)), self.workspace.root):
            self._fail(path, "is a link that leads out of the tree, so it is not looked at")
            return
        if not stat.S_ISREG(status.st_mode):
            if named:
                self._fail(path, "is not a regular file")
            return
        identity, label = (status.st_dev, status.st_ino), self._label(path)
        if identity in self.seen:
            if path.is_symlink() and path.suffix == ".py":
                self.workspace.links[label] = self.seen[identity]
            return
        self.seen[identity] = label
        target = self.workspace.notebooks if path.suffix == ".ipynb" else self.workspace.files
        target.append(label)

    def _fail(self, path: Path, message: str) -> None:
        self.workspace.errors.append(FileError(self._label(path), None, message))

    def _label(self, path: Path) -> str:
        return path.relative_to(self.workspace.root).as_posix()
