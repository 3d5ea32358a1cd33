"""Answers: an analysis that cannot tell says so."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from ..flow.values import Value


class Answer(Enum):
    """Whether something is so on every run, on none, or nobody knows (or: on some)."""

    YES = "yes"
    NO = "no"
    UNKNOWN = "unknown"


@dataclass(frozen=True)
class Sharding:
    """Whether an expression is a model that FSDP2 shards after the migration.

    ``wrappers`` are those that the model may have been in (``fsdp1``, ``ddp``), ``value`` the wrapped model that
    flows there, if one is known to.
    """

    answer: Answer
    wrappers: frozenset[str] = frozenset()
    value: Value | None = None
    in_place: bool = False
    """Whether it is the module that was handed to a wrapper, not what the wrapper gave back: the same object now."""
    wrapped_in: frozenset[str] = frozenset()
    """Those of ``wrappers`` that gave back what comes here, where the others were only handed it."""

    @property
    def certain(self) -> bool:
        """Whether it is sharded whenever the place is reached."""
        return self.answer is Answer.YES

    @property
    def possible(self) -> bool:
        """Whether it may be sharded."""
        return self.answer is not Answer.NO
