"""Private functions that would give back what they are given go with their calls."""

from __future__ import annotations

import pytest
from migrating import analyse_texts

_TRAIN = '''\
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, ShardingStrategy
from torch.distributed.fsdp.wrap import ModuleWrapPolicy


def _member(name: str) -> ShardingStrategy:
    """The enum member of a name."""
    return getattr(ShardingStrategy, name)


def shard(model: torch.nn.Module, name: str) -> torch.nn.Module:
    policy = ModuleWrapPolicy({torch.nn.Linear})
    return FSDP(model, auto_wrap_policy=policy, sharding_strategy=_member(name))


def main(name):
    return shard(torch.nn.Linear(2, 2), name)
'''


def test_the_function_goes_and_its_calls_become_their_argument() -> None:
    analysis, texts = analyse_texts({"train.py": _TRAIN})
    text = texts["train.py"]
    assert "_member" not in text
    assert '"SHARD_GRAD_OP": False}[name]' in text
    assert "import fully_shard\n\n\ndef shard(" in text
    assert any(finding.message.startswith("goes with the function that it stands in") for finding in analysis.findings)


@pytest.mark.parametrize(
    "change",
    [
        ("_member", "member_of"),
        ("=_member(name)", "=_member(*[name])"),
        ("def main", "STRATEGIES = [_member]\n\n\ndef main"),
        ("def _member", "@torch.no_grad()\ndef _member"),
    ],
)
def test_it_stays_where_others_may_use_it(change: tuple[str, str]) -> None:
    _, texts = analyse_texts({"train.py": _TRAIN.replace(*change)})
    assert "    return name\n" in texts["train.py"]
