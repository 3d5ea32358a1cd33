"""`to-fsdp2 demo`: a bundled repository, migrated and verified."""

from __future__ import annotations


def demo() -> int:
    """x"""
    return 0
