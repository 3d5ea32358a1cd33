import torch
import torch.nn as nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp.wrap import ModuleWrapPolicy
from torch.nn.parallel import DistributedDataParallel as DDP


def is_model_ddp(model: nn.Module) -> bool:
    """Whether the model is wrapped by DDP."""
    return isinstance(model, DDP)


def is_model_fsdp(model: nn.Module) -> bool:
    """Whether the model is wrapped by FSDP."""
    return isinstance(model, FSDP)


def unwrap(model):
    return model.module if isinstance(model, (FSDP, DDP)) else model


def wrap(model, parallel, device, blocks):
    if parallel == "fsdp":
        return FSDP(model, auto_wrap_policy=ModuleWrapPolicy(blocks), device_id=device, use_orig_params=True)
    return DDP(model, device_ids=[device.index] if device.type == "cuda" else None)
