import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel


def prepare_module(module, find_unused_parameters=False):
    """Wraps a module for data parallel training, where there is more than one process."""
    if not dist.is_initialized():
        return module
    if not any(parameter.requires_grad for parameter in module.parameters()):
        return module
    return DistributedDataParallel(module, find_unused_parameters=find_unused_parameters)
