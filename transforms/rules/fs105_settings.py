"""FS105: policies, precisions, strategies and other settings of FSDP1."""

from __future__ import annotations

from ..facts.symbols import ENABLE_WRAP, WRAP
from ..findings import Form, Level
from ..migration import Migration
from ..rule import Example, Outcome, Rule
from ..sites import Site

_FSDP = "torch.distributed.fsdp"
_OF_STATE = (
    "StateDictType", "StateDictConfig", "OptimStateDictConfig", "StateDictSettings", "OptimStateKeyType",
    "FullStateDictConfig", "ShardedStateDictConfig", "LocalStateDictConfig",
    "FullOptimStateDictConfig", "ShardedOptimStateDictConfig", "LocalOptimStateDictConfig",
)  # fmt: skip
_OF_SHARDING = ("MixedPrecision", "ShardingStrategy", "CPUOffload", "BackwardPrefetch")


def stays(site: Site, migration: Migration) -> Outcome:
    """The helpers read FSDP1's own settings as they come; plain calls of fully_shard have taken theirs in."""
    if migration.is_absorbed(site):
        return Outcome("its meaning went into the arguments of the new calls", level=Level.SAFE, form=Form.IDIOM)
    owner = site.symbol.removeprefix(f"{_FSDP}.").partition(".")[0]
    if owner in _OF_STATE:
        return Outcome("read as it is by the functions that take and load state", level=Level.OK)
    if site.symbol.startswith((f"{WRAP}.", f"{ENABLE_WRAP}.")) or site.symbol in (WRAP, ENABLE_WRAP):
        return Outcome("calls what enable_wrap names: the function in the wrapper's place", level=Level.OK)
    return Outcome("read as it is by the function that shards", level=Level.OK)


RULE = Rule(
    id="FS105",
    title="settings of FSDP1",
    symbols=(*(f"{_FSDP}.{name}{rest}" for name in (*_OF_STATE, *_OF_SHARDING) for rest in ("", ".*")), f"{_FSDP}.wrap.*"),
    roles=("call", "value", "test", "annotation", "base"),
    why="A setting that is built far from its wrap is translated where it is read, so that every reader agrees on it.",
    fallback=stays,
    examples=(
        Example(
            before="from torch.distributed.fsdp import ShardingStrategy\n\n\ndef f():\n    return ShardingStrategy.FULL_SHARD\n",
            after="from torch.distributed.fsdp import ShardingStrategy\n\n\ndef f():\n    return ShardingStrategy.FULL_SHARD\n",
            level=Level.OK,
        ),
    ),
    proof=("keywords_in_a_dict",),
)
