"""Tables of strategies that map each name to itself after the migration go, unless something else reads them."""

from __future__ import annotations

import pytest
from migrating import analyse_texts

_PROGRAM = """\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, ShardingStrategy


def shard(model, config):
    strategies = {{
        "FULL_SHARD": ShardingStrategy.FULL_SHARD,
        "{key}": ShardingStrategy.SHARD_GRAD_OP,
    }}

    chosen = strategies[config.strategy]
    {use}
    return FSDP(model, sharding_strategy=chosen)
"""


@pytest.mark.parametrize(
    ("key", "use", "goes"),
    [
        ("SHARD_GRAD_OP", "pass", True),
        ("zero2", "pass", False),
        ("SHARD_GRAD_OP", "print(list(strategies))", False),
        ("SHARD_GRAD_OP", "print(strategies.get(config.other))", False),
    ],
)
def test_a_table_that_gives_its_keys_back_goes(key: str, use: str, goes: bool) -> None:
    text = analyse_texts({"train.py": _PROGRAM.format(key=key, use=use)})[1]["train.py"]
    assert "fully_shard(" in text
    assert ("def shard(model, config):\n    chosen = config.strategy\n" in text) == goes
    assert ("strategies" not in text) == goes
