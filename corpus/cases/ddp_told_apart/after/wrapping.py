import torch
import torch.nn as nn
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.nn.parallel import DistributedDataParallel as DDP


def is_model_ddp(model: nn.Module) -> bool:
    """Whether the model is wrapped by DDP."""
    return isinstance(model, DDP)


def is_model_fsdp(model: nn.Module) -> bool:
    """Whether the model is wrapped by FSDP."""
    return isinstance(model, FSDPModule)


def unwrap(model):
    return model.module if isinstance(model, DDP) else model


def wrap(model, parallel, device, blocks):
    if parallel == "fsdp":
        for module in reversed(list(model.modules())):
            if isinstance(module, tuple(blocks)):
                fully_shard(module)
        fully_shard(model)
        return model
    return DDP(model, device_ids=[device.index] if device.type == "cuda" else None)
