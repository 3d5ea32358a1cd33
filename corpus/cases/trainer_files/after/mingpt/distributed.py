"""Everything that has to do with several processes."""

import os

import torch
import torch.distributed as dist
from torch.distributed.fsdp import FSDPModule, fully_shard

from mingpt.model import Block


def init():
    dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    if torch.cuda.is_available():
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))


def get_device():
    return torch.device("cuda", torch.cuda.current_device()) if torch.cuda.is_available() else torch.device("cpu")


def is_main_process():
    return dist.get_rank() == 0


def wrap_model(model) -> FSDPModule:
    """Shards the model over all processes, one block at a time."""
    policy = (Block,)
    for module in reversed(list(model.modules())):
        if isinstance(module, policy):
            fully_shard(module)
    fully_shard(model)
    return model
