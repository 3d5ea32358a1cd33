"""Exit codes: the same numbers mean the same in every command; 1 and 2 are bits that combine."""

from __future__ import annotations

DONE = 0
REMAINS = 1
"""diff: the patch is not empty; apply: findings remain to be looked at; check: there are findings."""
FAILED_FILES = 2
"""Some files could not be processed."""
USAGE = 64
INTERNAL = 70
INTERRUPTED = 130
