"""Three answers: an analysis that cannot tell says so."""

from __future__ import annotations

from enum import Enum


class Answer(Enum):
    """Whether something is so on every run, on none, or nobody knows (or: on some)."""

    YES = "yes"
    NO = "no"
    UNKNOWN = "unknown"
