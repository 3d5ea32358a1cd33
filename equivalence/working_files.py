"""The files of a working directory that git does not keep, and how a side gets to see them."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from .options import UsageError

COPY_LIMIT = 1 << 30
"""Bytes of untracked files that are copied without asking."""
LINK_ABOVE = 1 << 20
"""Bytes from which `link` links a file instead of copying it."""
NEVER_NEEDED = frozenset(
    (".git", "__pycache__", "node_modules", ".pytest_cache", ".mypy_cache", ".ruff_cache", ".tox", ".nox")
)


def walk(top: Path, skip: tuple[Path, ...] = ()) -> Iterator[str]:
    """Relative POSIX paths of all files and symbolic links below `top`, in a stable order.

    Left out: caches, .git, virtual environments (told by their pyvenv.cfg), and the directories in `skip`.
    """
    pending = [top]
    while pending:
        directory = pending.pop()
        with os.scandir(directory) as entries:
            for entry in sorted(entries, key=lambda entry: entry.name):
                if entry.name in NEVER_NEEDED:
                    continue
                path = Path(entry.path)
                if not entry.is_dir(follow_symlinks=False):
                    if entry.is_file() or entry.is_symlink():
                        yield path.relative_to(top).as_posix()
                elif path not in skip and not (path / "pyvenv.cfg").exists():
                    pending.append(path)


def transfer(names: list[str], source: Path, target: Path, link: bool = False) -> None:
    """Copies the named files below `source` to the same places below `target`; what is there already stays.

    With `link`, files above LINK_ABOVE become symbolic links to the originals.
    """
    for name in names:
        origin, copy = source / name, target / name
        if copy.is_symlink() or copy.exists():
            continue
        copy.parent.mkdir(parents=True, exist_ok=True)
        if origin.is_symlink():
            copy.symlink_to(_target_of_link(origin, source))
        elif link and origin.stat().st_size > LINK_ABOVE:
            copy.symlink_to(origin)
        else:
            shutil.copy2(origin, copy)


def repoint_links(names: list[str], source: Path, target: Path) -> None:
    """Mends symbolic links below `target` that lead out of the tree and so lead nowhere from its new place."""
    for name in names:
        origin, copy = source / name, target / name
        if origin.is_symlink() and copy.is_symlink() and not copy.exists() and origin.exists():
            copy.unlink()
            copy.symlink_to(_target_of_link(origin, source))


def _target_of_link(link: Path, top: Path) -> str:
    """Where a copy of `link` has to point: as it is within `top`, absolute where it leads out."""
    resolved = link.resolve()
    return os.readlink(link) if resolved.is_relative_to(top) else str(resolved)


def check_size(names: list[str], top: Path) -> None:
    """UsageError if copying these files would take more than COPY_LIMIT bytes."""
    sizes = {name: (top / name).stat().st_size for name in names if not (top / name).is_symlink()}
    total = sum(sizes.values())
    if total <= COPY_LIMIT:
        return
    largest = ", ".join(
        f"{name} ({sizes[name] / 1e9:.1f} GB)" for name in sorted(sizes, key=sizes.__getitem__, reverse=True)[:3]
    )
    raise UsageError(
        f"{top} holds {total / 1e9:.1f} GB of files that git does not track, which each side would copy: {largest}. "
        "Use --untracked link (large files are linked: a run that overwrites one overwrites yours), "
        "--untracked none, or --in-place."
    )
