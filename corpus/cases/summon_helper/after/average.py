import contextlib

import torch
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor, Replicate


@contextlib.contextmanager
def whole_parameters(model, writeback=True):
    """Puts whole parameters in the place of the shards of a model; what is left in them goes back with writeback."""
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.reshard()
    places = [
        (module, name, param)
        for module in model.modules()
        for name, param in module.named_parameters(recurse=False)
        if isinstance(param, DTensor)
    ]
    whole = {}
    for _, _, shard in places:
        if shard not in whole:
            gathered = shard.detach().to(shard.device_mesh.device_type).full_tensor()
            whole[shard] = torch.nn.Parameter(gathered, requires_grad=shard.requires_grad)
    for module, name, shard in places:
        setattr(module, name, whole[shard])
    try:
        yield
    finally:
        kept = all(getattr(module, name) is whole[shard] for module, name, shard in places)
        for module, name, shard in places:
            setattr(module, name, shard)
        if kept and writeback:
            with torch.no_grad():
                for shard, param in whole.items():
                    mesh = shard.device_mesh
                    copies = DTensor.from_local(param.detach(), mesh, [Replicate()] * mesh.ndim)
                    shard.to_local().copy_(copies.redistribute(mesh, shard.placements).to_local())
    if not kept:
        raise RuntimeError("parameters were put in place inside whole_parameters; forwards have to run outside of it")


def full_parameters(model, writeback=True):
    """The context in which a model has whole parameters; one that is not wrapped has them anyway."""
    context = contextlib.nullcontext()
    if isinstance(model, FSDPModule):
        context = whole_parameters(model, writeback=writeback)
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
