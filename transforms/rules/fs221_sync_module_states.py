"""sync_module_states: rank 0's weights are broadcast before sharding."""

from __future__ import annotations

from ..analysis.symbols import FSDP1
from ..findings import Level
from ..rule import Example, Rule
from ..sharding.constructor import check_keyword

RULE = Rule(
    id="FS221",
    title="sync_module_states becomes a broadcast before sharding",
    why=(
        "fully_shard takes every rank's own rows: where ranks start from different weights, the model becomes a "
        "patchwork of them, with no error (losses off by 7e-2 to 2.3e-1). The broadcast needs the model on its device, "
        "and buffers with the parameters."
    ),
    symbols=(f"{FSDP1}(sync_module_states=)",),
    check=check_keyword,
    examples=(
        Example(
            before="""\
import torch
import torch.distributed as dist
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


def shard(model):
    dist.barrier()
    model = FSDP(model, sync_module_states=True, device_id=torch.cuda.current_device())
    return model
""",
            after="""\
import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard


def shard(model):
    dist.barrier()
    model.to(torch.cuda.current_device())
    for tensor in [*model.parameters(), *model.buffers()]:
        dist.broadcast(tensor.detach(), src=0)
    fully_shard(model)
    return model
""",
            level=Level.REVIEW,
            note="The model is moved whole, where FSDP1 went unit by unit.",
        ),
        Example(
            before="""\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


def shard(model, sync):
    model = FSDP(model.cuda(), sync_module_states=sync)
    return model
""",
            after="""\
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard


def shard(model, sync):
    model = model.cuda()
    if sync:
        for tensor in [*model.parameters(), *model.buffers()]:
            dist.broadcast(tensor.detach(), src=0)
    fully_shard(model)
    return model
""",
        ),
    ),
    proof=("nanogpt_ddp", "fsdp_or_ddp"),
)
