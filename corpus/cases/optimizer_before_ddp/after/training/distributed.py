import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard


def prepare_module(module, find_unused_parameters=False):
    """Wraps a module for data parallel training, where there is more than one process."""
    if not dist.is_initialized():
        return module
    if not any(parameter.requires_grad for parameter in module.parameters()):
        return module
    for tensor in [*module.parameters(), *module.buffers()]:
        dist.broadcast(tensor.detach(), src=0)
    fully_shard(
        module, mesh=init_device_mesh(next(module.parameters()).device.type, (dist.get_world_size(),))
    )
    return module
