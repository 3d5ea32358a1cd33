"""ShardingStrategy in configurations, comparisons and annotations: strategies are named by strings."""

from __future__ import annotations

from ..findings import Level
from ..rule import Example, Rule
from ..sharding.strategy import STRATEGY
from ..sharding.strategy_names import check_mention, names_of_chosen

RULE = Rule(
    id="FS107",
    title="Strategies are named by strings",
    why=(
        "FSDP2 has no ShardingStrategy. Where a program keeps one in its configuration, compares it or looks it up by "
        "name, the name itself serves, and the wrap decides by it."
    ),
    symbols=(STRATEGY, f"{STRATEGY}.*"),
    roles=("reference", "annotation", "call", "keyword", "use", "isinstance"),
    check=check_mention,
    find=names_of_chosen,
    examples=(
        Example(
            before="""\
from dataclasses import dataclass

from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, ShardingStrategy


@dataclass
class Config:
    strategy: ShardingStrategy = ShardingStrategy.FULL_SHARD


def shard(model, config: Config):
    if config.strategy == ShardingStrategy.SHARD_GRAD_OP:
        print("parameters stay gathered")
    model = FSDP(model, sharding_strategy=config.strategy)
    return model
""",
            after="""\
from dataclasses import dataclass

from torch.distributed.fsdp import fully_shard


@dataclass
class Config:
    strategy: str = "FULL_SHARD"


def shard(model, config: Config):
    if config.strategy == "SHARD_GRAD_OP":
        print("parameters stay gathered")
    assert config.strategy in ("FULL_SHARD", "SHARD_GRAD_OP"), config.strategy
    fully_shard(model)
    return model
""",
        ),
        Example(
            before="""\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, ShardingStrategy


def shard(model, strategy):
    if isinstance(strategy, ShardingStrategy):
        print("an enum member")
    return FSDP(model)
""",
            after="""\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, ShardingStrategy


def shard(model, strategy):
    if isinstance(strategy, ShardingStrategy):
        print("an enum member")
    return FSDP(model)
""",
            level=Level.MANUAL,
        ),
    ),
    proof=("finetuning_package", "strategy_from_config"),
)
