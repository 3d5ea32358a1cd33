"""Modules of helpers that the tool wrote: known again by a word in their first lines, and never migrated themselves."""

from __future__ import annotations

HELPER_MODULE = "fsdp2_helpers"
MARK = "Written by to-fsdp2"


def is_helper_module(path: str) -> bool:
    """Whether a path is that of a module of helpers, if the tool wrote it."""
    return path.rpartition("/")[2] == f"{HELPER_MODULE}.py"


def is_generated(text: str) -> bool:
    """Whether the tool wrote a text."""
    return any(line.startswith(f"# {MARK}") for line in text.splitlines()[:5])
