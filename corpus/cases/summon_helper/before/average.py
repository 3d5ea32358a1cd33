import contextlib

import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


def full_parameters(model, writeback=True):
    """The context in which a model has whole parameters; one that is not wrapped has them anyway."""
    context = contextlib.nullcontext()
    if isinstance(model, FSDP):
        context = FSDP.summon_full_params(model, writeback=writeback)
    return context


class Average:
    """A moving average of the trained weights, whole on every rank."""

    def __init__(self, model, decay):
        self.decay = decay
        with full_parameters(model, writeback=False):
            self.weights = {n: p.detach().clone() for n, p in model.named_parameters() if p.requires_grad}

    def update(self, model):
        with full_parameters(model, False):
            for name, param in model.named_parameters():
                if name in self.weights:
                    self.weights[name].lerp_(param.detach(), 1 - self.decay)

    def swap(self, model):
        """Exchanges the weights of the model and the average."""
        context = full_parameters(model)
        with torch.no_grad(), context:
            for name, param in model.named_parameters():
                if name in self.weights:
                    current = param.clone()
                    param.copy_(self.weights[name])
                    self.weights[name].copy_(current)
