"""Wraps that an earlier run has migrated."""

from __future__ import annotations

import re

from .program import Program

_MIGRATED = {"fsdp1": r"shard_like_fsdp1|LikeFSDP1\b", "ddp": r"shard_like_ddp|LikeDDP\b|keep_state_dicts_whole"}
"""What stands where such a wrap was."""


def migrated_kinds(program: Program) -> dict[str, frozenset[str]]:
    """The wrappers whose wraps an earlier run has migrated in each file with facts."""
    texts = {facts.path: program.text(facts.path) for facts in program.facts}
    return {path: frozenset(kind for kind, word in _MIGRATED.items() if re.search(word, text)) for path, text in texts.items()}


def shards(program: Program) -> bool:
    """Whether anything is sharded by FSDP2, be it by an earlier run."""
    return program.mentions(r"\bfully_shard\(|shard_like_fsdp1|LikeFSDP1\b")
