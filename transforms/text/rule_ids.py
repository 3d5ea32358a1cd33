"""Ids of rules that are close to what somebody wrote."""

from __future__ import annotations

import difflib
from collections.abc import Collection


def ids_like(written: str, known: Collection[str], most: int) -> list[str]:
    """Those of ``known`` that may be meant, the ones that differ in the fewest places first."""
    near = difflib.get_close_matches(written.upper(), sorted(known), 12, cutoff=0.7)
    return sorted(near, key=lambda rule: sum(map(str.__ne__, rule, written.upper())))[:most]
