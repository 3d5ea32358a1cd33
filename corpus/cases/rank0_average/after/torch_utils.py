import functools
import os
from copy import deepcopy

import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard

RANK = int(os.getenv("RANK", -1))
LOCAL_RANK = int(os.getenv("LOCAL_RANK", -1))


def main_process(function):
    @functools.wraps(function)
    def wrapper(*args, **kwargs):
        if RANK in {-1, 0}:
            return function(*args, **kwargs)

    return wrapper


def smart_ddp(model):
    for tensor in [*model.parameters(), *model.buffers()]:
        dist.broadcast(tensor.detach(), src=0)
    fully_shard(model)
    return model


def is_parallel(model):
    return type(model) is torch.nn.parallel.DataParallel


def de_parallel(model):
    return model.module if is_parallel(model) else model


class ModelEMA:
    """Keeps a moving average of everything in the state dict of a model."""

    def __init__(self, model, decay=0.9):
        self.ema = deepcopy(de_parallel(model)).eval()
        self.decay = decay
        for p in self.ema.parameters():
            p.requires_grad_(False)

    def update(self, model, model_state_dict):
        msd = model_state_dict
        for k, v in self.ema.state_dict().items():
            if v.dtype.is_floating_point:
                v *= self.decay
                v += (1 - self.decay) * msd[k].detach()
