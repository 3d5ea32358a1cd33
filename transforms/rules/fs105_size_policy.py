"""size_based_auto_wrap_policy: a short function that shards what the policy would have wrapped."""

from __future__ import annotations

from ..rule import Example, Rule
from ..sharding.policy_definitions import WRAP
from ..sharding.policy_findings import check_definition
from ..sharding.size_policy import HELPER

RULE = Rule(
    id="FS105",
    title="Policies by size become a function that shards",
    why=(
        "The policy walks down while a module is large, counts what its children have taken, never picks a "
        "list or dict "
        "of modules (fully_shard refuses them) and never goes into MultiheadAttention (sharding its out_proj "
        "alone mixes "
        "plain and sharded tensors). A loop over parameter counts that leaves any of this out picks other modules."
    ),
    symbols=(f"{WRAP}size_based_auto_wrap_policy", f"{WRAP}default_auto_wrap_policy"),
    roles=("call", "reference"),
    check=check_definition,
    examples=(
        Example(
            before="""\
import functools

import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp.wrap import size_based_auto_wrap_policy


def shard(model):
    policy = functools.partial(size_based_auto_wrap_policy, min_num_params=20_000)
    model = FSDP(model, auto_wrap_policy=policy)
    return torch.compile(model)
""",
            after="""\
import torch
from torch.distributed.fsdp import fully_shard


"""
            + HELPER.format(
                attention="torch.nn.MultiheadAttention",
                list="torch.nn.ModuleList",
                dict="torch.nn.ModuleDict",
                shard="fully_shard",
            )
            + """\


def shard(model):
    shard_large_modules(model, min_num_params=20_000)
    fully_shard(model)
    return torch.compile(model)
""",
        ),
    ),
    proof=("size_based_policy",),
)
