"""Arguments that come in a dictionary, and arguments that FSDP1 does not have."""

from __future__ import annotations

from ..analysis.symbols import FSDP1
from ..findings import Level
from ..rule import Example, Rule
from ..sharding.spread import check_spread

_UNKNOWN = """\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


def shard(model):
    return FSDP(model, reshard=True)
"""

_OUTSIDE = """\
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


def shard(model, config, device):
    torch.cuda.set_device(device)
    kwargs = config.get("fsdp", {})
    if device:
        kwargs.setdefault("device_id", device)
    return FSDP(model, **kwargs)
"""
_OUTSIDE_AFTER = """\
import torch
from torch.distributed.fsdp import fully_shard


def shard(model, config, device):
    torch.cuda.set_device(device)
    kwargs = config.get("fsdp", {})
    fully_shard(model, **kwargs)
    return model
"""

RULE = Rule(
    id="FS112",
    title="Arguments in dictionaries, unknown arguments",
    why=(
        "An argument that the tool does not see may decide about precision, about which weights the ranks start from, "
        "or about what is sharded: it is read where the dictionary is written out in the repository, and never guessed. "
        "What comes from outside goes to fully_shard as it is: "
        "the two have no argument of one name in common, so one of FSDP1 raises a TypeError."
    ),
    symbols=(f"{FSDP1}(*",),
    roles=("keyword",),
    check=check_spread,
    examples=(
        Example(
            before="""\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp import ShardingStrategy


def shard(model):
    kwargs = dict(use_orig_params=True, sharding_strategy=ShardingStrategy.SHARD_GRAD_OP)
    return FSDP(model, **kwargs)
""",
            after="""\
from torch.distributed.fsdp import fully_shard


def shard(model):
    fully_shard(model, reshard_after_forward=False)
    return model
""",
        ),
        Example(before=_UNKNOWN, after=_UNKNOWN, level=Level.MANUAL),
        Example(before=_OUTSIDE, after=_OUTSIDE_AFTER, level=Level.REVIEW, note="old keywords raise a TypeError"),
    ),
    proof=("keywords_in_a_dict",),
)
