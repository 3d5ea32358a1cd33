"""FS118: activation checkpointing by wrapped modules."""

from __future__ import annotations

from ..findings import Level
from ..migration import Migration
from ..rule import Example, Outcome, Rule
from ..sites import Site

_WRAPPER = "torch.distributed.algorithms._checkpoint"


def stays(site: Site, migration: Migration) -> Outcome:
    """The wrappers know nothing of FSDP1."""
    return Outcome("works on models of FSDP2 as well", level=Level.OK)


RULE = Rule(
    id="FS118",
    title="activation checkpointing",
    symbols=(f"{_WRAPPER}.*",),
    roles=("call", "value", "test", "annotation", "base"),
    why="Checkpointed modules are sharded like any other, and their names in state dicts are those of the modules inside.",
    fallback=stays,
    examples=(
        Example(
            before=(
                "from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper\n\n\n"
                "def f(block):\n    return checkpoint_wrapper(block)\n"
            ),
            after=(
                "from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper\n\n\n"
                "def f(block):\n    return checkpoint_wrapper(block)\n"
            ),
            level=Level.OK,
        ),
    ),
)
