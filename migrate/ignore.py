"""What a walk leaves out: git's ignore rules, `--exclude` patterns, environments and build output."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from pathspec import GitIgnoreSpec

from ..equivalence.small_files import read_small_text
from . import git

_NEVER = frozenset(
    {
        ".eggs",
        ".git",
        ".hg",
        ".mypy_cache",
        ".nox",
        ".pytest_cache",
        ".ruff_cache",
        ".svn",
        ".tox",
        "__pycache__",
        "__pypackages__",
        "node_modules",
        "site-packages",
    }
)
BUILD_OUTPUT = frozenset({"build", "dist"})


def is_default_excluded(directory: str, name: str) -> bool:
    """Whether a folder met on a walk holds no code of the repository's own.

    A virtual environment is known by its `pyvenv.cfg`, a conda environment by `conda-meta`. A `build` or
    `dist` with an `__init__.py` is a package, not build output.
    """
    if name in _NEVER:
        return True
    if name in BUILD_OUTPUT:
        return not os.path.exists(os.path.join(directory, "__init__.py"))
    return os.path.exists(os.path.join(directory, "pyvenv.cfg")) or os.path.isdir(os.path.join(directory, "conda-meta"))


@dataclass(frozen=True)
class IgnoreRules:
    """The patterns of one .gitignore (or of `--exclude`) and the folder that they are relative to."""

    base: str
    spec: GitIgnoreSpec

    def decides(self, path: str, is_directory: bool) -> bool | None:
        """True: ignored, False: taken back by a `!` pattern, None: no pattern speaks of it."""
        relative = os.path.relpath(path, self.base).replace(os.sep, "/")
        return self.spec.check_file(relative + "/" if is_directory else relative).include


def exclude_rules(base: Path, patterns: Iterable[str]) -> IgnoreRules:
    """`--exclude` globs, read as lines of a .gitignore in `base`."""
    return IgnoreRules(str(base), GitIgnoreSpec.from_lines(patterns))


def read_ignore_file(folder: str, file: Path | None = None) -> IgnoreRules | None:
    """The rules of a folder's .gitignore, or of another file that speaks of that folder; None without one."""
    text = read_small_text(file or Path(folder, ".gitignore"))
    return None if text is None else IgnoreRules(folder, GitIgnoreSpec.from_lines(text.splitlines()))


def rules_above(folder: Path, repository: Path | None) -> list[IgnoreRules]:
    """The ignore files that count in a folder of a repository before its own, the weakest first.

    These are what git is configured with, then those from the repository's root down to the parent of `folder`. When
    they ignore `folder` itself, they do not count: who names a folder wants what is in it.
    """
    if repository is None:
        return []
    parents = [parent for parent in folder.parents if parent == repository or repository in parent.parents]
    rules = [found for file in git.exclude_files(repository) if (found := read_ignore_file(str(repository), file))]
    rules += [found for parent in reversed(parents) if (found := read_ignore_file(str(parent)))]
    if folder == repository:
        return rules
    on_the_way = [*reversed([parent for parent in parents if parent != repository]), folder]
    if any(is_ignored(rules, str(step), is_directory=True) for step in on_the_way):
        return []
    return rules


def is_ignored(rules: Iterable[IgnoreRules], path: str, is_directory: bool) -> bool:
    """git's decision: the last rule that speaks of a path wins, and deeper files come later."""
    ignored = False
    for rule in rules:
        decision = rule.decides(path, is_directory)
        if decision is not None:
            ignored = decision
    return ignored
