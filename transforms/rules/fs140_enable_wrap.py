"""enable_wrap and wrap: modules that are wrapped one by one, often while a model is built."""

from __future__ import annotations

from ..analysis.symbols import ENABLE_WRAP, WRAP
from ..findings import Level
from ..migration import Migration
from ..rule import Example, Outcome, Rule
from ..sharding.wrap_block import check_block, check_keyword, check_wrap
from ..sites import Site

_BUILT = """\
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp.wrap import enable_wrap, wrap


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        with enable_wrap(wrapper_cls=FSDP):
            self.layer = wrap(nn.Linear(8, 8))
"""

_AFTER_BUILT = """\
from torch import nn
from torch.distributed.fsdp import fully_shard


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = fully_shard(nn.Linear(8, 8))
"""


def check(site: Site, migration: Migration) -> Outcome:
    """The block becomes a function that shards, each wrap a call of it, or of fully_shard itself."""
    if site.role == "keyword":
        return check_keyword(site, migration)
    if site.symbol == ENABLE_WRAP and site.role == "call":
        return check_block(site, migration)
    if site.symbol == WRAP:
        return check_wrap(site, migration)
    return Outcome(
        Level.MANUAL,
        "enable_wrap is handed on, and where it is entered cannot be seen from here",
        "Call fully_shard on the modules that wrap() is given, from the leaves up.",
        holds=True,
    )


_PARTS = """\
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, ShardingStrategy
from torch.distributed.fsdp.wrap import enable_wrap, wrap


class Net(nn.Module):
    def shard(self):
        device = torch.device("cuda", torch.cuda.current_device())
        with enable_wrap(wrapper_cls=FSDP, device_id=device, sync_module_states=True, use_orig_params=True):
            # parts first
            self.layers = nn.ModuleList(wrap(wrap(layer)) for layer in self.layers)
            self.head = wrap(self.head, sharding_strategy=ShardingStrategy.SHARD_GRAD_OP)
"""

_AFTER_PARTS = """\
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor


class Net(nn.Module):
    def shard(self):
        device = torch.device("cuda", torch.cuda.current_device())

        def shard(model):
            model.to(device)
            for tensor in [*model.parameters(), *model.buffers()]:
                if not isinstance(tensor, DTensor):
                    dist.broadcast(tensor.detach(), src=0)
            fully_shard(model, reshard_after_forward=True)
            return model

        def shard_2(model):
            model.to(device)
            for tensor in [*model.parameters(), *model.buffers()]:
                if not isinstance(tensor, DTensor):
                    dist.broadcast(tensor.detach(), src=0)
            fully_shard(model, reshard_after_forward=False)
            return model

        # parts first
        self.layers = nn.ModuleList(shard(layer) for layer in self.layers)
        self.head = shard_2(self.head)
"""

_ELSEWHERE = """\
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp.wrap import enable_wrap, wrap


def build():
    return nn.Sequential(wrap(nn.Linear(8, 8)), nn.Linear(8, 8))


def main():
    with enable_wrap(wrapper_cls=FSDP):
        return wrap(build())
"""

RULE = Rule(
    id="FS140",
    title="enable_wrap and wrap",
    why=(
        "wrap(module) under enable_wrap is FSDP(module, …) with the block's arguments, and shards at once; fully_shard in "
        "its place does the same to the module itself. wrap(wrap(x)) was written so that FSDP1 frees the parameters of x "
        "after its forward: one fully_shard(x, reshard_after_forward=True) says so. A call of wrap outside all blocks "
        "takes its arguments from the block that the program is in, and would wrap nothing without one."
    ),
    symbols=(ENABLE_WRAP, f"{ENABLE_WRAP}(*", WRAP, f"{WRAP}(*"),
    roles=("call", "reference", "keyword"),
    check=check,
    examples=(
        Example(before=_BUILT, after=_AFTER_BUILT),
        Example(before=_PARTS, after=_AFTER_PARTS, level=Level.REVIEW),
        Example(before=_ELSEWHERE, after=_ELSEWHERE, level=Level.MANUAL),
    ),
    proof=("enable_wrap",),
)
