"""param_init_fn: modules on meta are materialised before sharding."""

from __future__ import annotations

from ..analysis.symbols import FSDP1
from ..findings import Level
from ..rule import Example, Rule
from ..sharding.constructor import check_keyword

RULE = Rule(
    id="FS222",
    title="param_init_fn is called before sharding",
    why=(
        "FSDP1 calls it on every module with tensors on meta while it wraps. Called before fully_shard it "
        "does the same, "
        "buffers included, and a broadcast finds real tensors (on meta it would silently do nothing); the "
        "price is that "
        "each rank holds the whole model for a moment."
    ),
    symbols=(f"{FSDP1}(param_init_fn=)",),
    check=check_keyword,
    examples=(
        Example(
            before="""\
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


def shard(model, rank):
    model = FSDP(
        model,
        device_id=torch.cuda.current_device(),
        sync_module_states=True,
        param_init_fn=(lambda module: module.to_empty(device="cuda", recurse=False)) if rank != 0 else None,
    )
    return model
""",
            after="""\
import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard


def shard(model, rank):
    if rank != 0:
        for module in model.modules():
            tensors = [*module.parameters(recurse=False), *module.buffers(recurse=False)]
            if any(tensor.is_meta for tensor in tensors):
                module.to_empty(device="cuda", recurse=False)
    model.to(torch.cuda.current_device())
    for tensor in [*model.parameters(), *model.buffers()]:
        dist.broadcast(tensor.detach(), src=0)
    fully_shard(model)
    return model
""",
            level=Level.REVIEW,
        ),
    ),
)
