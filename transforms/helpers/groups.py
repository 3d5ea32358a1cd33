"""The process group of a model that may be sharded."""

from typing import Any

import torch.distributed as dist
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor


def group_of(model: Any) -> Any:
    """`model.process_group`: of a sharded model the group over which its parameters are split.

    Where no parameter is split (meshes of N x 1), the group that averages gradients.
    """
    if not isinstance(model, FSDPModule):
        return model.process_group
    mesh = next(p.device_mesh for p in model.parameters() if isinstance(p, DTensor))  # type: ignore[attr-defined]
    split = [dim for dim in range(mesh.ndim) if mesh.size(dim) > 1]
    return mesh.get_group(split[-1] if split else 0)


def rank_of(model: Any) -> int:
    """`model.rank` of a wrapper."""
    return dist.get_rank(group_of(model)) if isinstance(model, FSDPModule) else model.rank


def world_size_of(model: Any) -> int:
    """`model.world_size` of a wrapper."""
    return dist.get_world_size(group_of(model)) if isinstance(model, FSDPModule) else model.world_size
