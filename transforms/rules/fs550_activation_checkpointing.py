"""Activation checkpointing works with fully_shard as it stands; behind a wrap it moves before the sharding."""

from __future__ import annotations

from ..findings import Level
from ..migration import Migration
from ..rule import Example, Outcome, Rule
from ..sharding.checkpointing import WRAPPERS
from ..sites import Site


def check(site: Site, migration: Migration) -> Outcome:
    """Right as it is; the wrap takes statements right behind it along."""
    return Outcome(Level.OK, "activation checkpointing works with fully_shard as it stands")


RULE = Rule(
    id="FS550",
    title="Activation checkpointing comes before sharding",
    why=(
        "Numbers and the number of all-gathers are the same either way; before is what PyTorch documents for FSDP2. "
        "A loop that picks blocks by isinstance finds the block inside its checkpoint wrapper, as FSDP1's policy did."
    ),
    symbols=(f"{WRAPPERS}.*", WRAPPERS),
    roles=("call", "keyword", "reference", "annotation", "isinstance", "base", "use"),
    check=check,
    examples=(
        Example(
            before="""\
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import apply_activation_checkpointing
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


def shard(model, args):
    model = FSDP(model, use_orig_params=True)
    # trade time for memory
    if args.checkpoint:
        apply_activation_checkpointing(model)
    return model
""",
            after="""\
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import apply_activation_checkpointing
from torch.distributed.fsdp import fully_shard


def shard(model, args):
    # trade time for memory
    if args.checkpoint:
        apply_activation_checkpointing(model)
    fully_shard(model)
    return model
""",
            level=Level.OK,
        ),
    ),
    proof=("finetuning_package",),
)
