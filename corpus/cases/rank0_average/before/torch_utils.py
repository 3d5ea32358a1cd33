import functools
import os
from copy import deepcopy

import torch
from torch.nn.parallel import DistributedDataParallel as DDP

RANK = int(os.getenv("RANK", -1))
LOCAL_RANK = int(os.getenv("LOCAL_RANK", -1))


def main_process(function):
    @functools.wraps(function)
    def wrapper(*args, **kwargs):
        if RANK in {-1, 0}:
            return function(*args, **kwargs)

    return wrapper


def smart_ddp(model):
    return DDP(model, device_ids=[LOCAL_RANK] if torch.cuda.is_available() else None)


def is_parallel(model):
    return type(model) in (torch.nn.parallel.DataParallel, torch.nn.parallel.DistributedDataParallel)


def de_parallel(model):
    return model.module if is_parallel(model) else model


class ModelEMA:
    """Keeps a moving average of everything in the state dict of a model."""

    def __init__(self, model, decay=0.9):
        self.ema = deepcopy(de_parallel(model)).eval()
        self.decay = decay
        for p in self.ema.parameters():
            p.requires_grad_(False)

    def update(self, model):
        msd = de_parallel(model).state_dict()
        for k, v in self.ema.state_dict().items():
            if v.dtype.is_floating_point:
                v *= self.decay
                v += (1 - self.decay) * msd[k].detach()
