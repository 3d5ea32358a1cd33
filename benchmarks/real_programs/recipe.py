"""What a recipe is: how a public training program is made to run for a few steps on a machine without GPUs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True)
class Recipe:
    """One program. Its code stays in its clone: a recipe has commands, small configurations and data made on the fly."""

    name: str
    repository: str
    """Owner and name, as in ecosystem.tsv."""
    command: str
    """What follows `--`."""
    folder: str = "."
    """The part of the repository that is migrated and run."""
    prepare: Callable[[Path], None] = lambda folder: None
    """Writes data and configurations into the clone."""
    replace: Mapping[str, tuple[tuple[str, str], ...]] = field(default_factory=dict)
    """Text of the clone's files that is replaced, old by new: sizes that are not arguments, names that packages have lost."""
    stubs: tuple[str, ...] = ()
    """Packages of `stubs/` that stand in for ones which the program imports and hardly uses."""
    packages: tuple[str, ...] = ()
    """What has to be installed, beside torch and numpy."""
    resume: str | None = None
    """Arguments of a resumed run (`--resume-arguments`), empty if the same command goes on; None: it does not resume."""
    options: str = ""
    """More options of verify."""
    environment: Mapping[str, str] = field(default_factory=dict)
