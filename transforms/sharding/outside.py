"""FSDP1 classes in a repository that itself wraps nothing with FSDP1."""

from __future__ import annotations

from ..analysis.symbols import FSDP1
from ..findings import Level
from ..migration import Migration
from ..rule import Outcome


def uses_fsdp1(migration: Migration) -> bool:
    """Whether the repository works with FSDP1 models, its own or handed in, as opposed to configuring a library."""
    return migration.once("uses FSDP1", None, lambda: _uses_fsdp1(migration))


def _uses_fsdp1(migration: Migration) -> bool:
    return any(site.symbol.startswith(FSDP1) for sites in migration.sites.values() for site in sites)


def for_others(old: str, new: str) -> Outcome:
    """What is said of a class that only a library outside this repository can be meant to get."""
    return Outcome(
        Level.MANUAL,
        f"nothing in this repository works with FSDP1 models, so this {old} is for a library",
        f"Look up what that library wants for FSDP2, most often {new}.",
    )
