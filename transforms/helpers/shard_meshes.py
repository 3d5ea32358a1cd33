"""The device mesh that stands for the process groups of FSDP1 and DDP."""

import os
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

HYBRID_STRATEGIES = ("HYBRID_SHARD", "_HYBRID_SHARD_ZERO2")


def group_mesh(device: torch.device, process_group: Any = None) -> DeviceMesh:
    """One dimension over the ranks of `process_group`; over all ranks for None."""
    if process_group is not None:  # needed for: ddp.process_group.set, meshes
        return DeviceMesh.from_group(process_group, device.type)
    return init_device_mesh(device.type, (dist.get_world_size(),))


def strategy_mesh(device: torch.device, strategy: str, process_group: Any, device_mesh: DeviceMesh | None) -> DeviceMesh:
    """The mesh for the name of a ShardingStrategy and FSDP1's arguments.

    FSDP1's pair of process groups is (shard, replicate); a mesh has the dimensions (replicate, shard).
    Without either, hybrid strategies shard over the devices of one machine. Raises ValueError for a hybrid strategy
    with a mesh of one dimension.
    """
    names = ("replicate", "shard")
    if device_mesh is not None:
        if strategy in HYBRID_STRATEGIES and device_mesh.ndim != 2:
            raise ValueError(f"{strategy} needs a device_mesh of 2 dimensions, not {device_mesh.ndim}")
        if device_mesh.ndim == 2 and not device_mesh.mesh_dim_names:
            return DeviceMesh(device.type, device_mesh.mesh, mesh_dim_names=names)
        return device_mesh
    if strategy in HYBRID_STRATEGIES and process_group is not None:
        shard, replicate = process_group
        return DeviceMesh.from_group([replicate, shard], device.type, mesh=_rows_of(shard), mesh_dim_names=names)
    if strategy in HYBRID_STRATEGIES:
        local = int(os.environ["LOCAL_WORLD_SIZE"]) if device.type == "cpu" else torch.get_device_module(device).device_count()
        return init_device_mesh(device.type, (dist.get_world_size() // local, local), mesh_dim_names=names)
    if strategy == "NO_SHARD":
        group: Any = process_group or dist.group.WORLD
        alone: Any = dist.new_group([dist.get_rank()], use_local_synchronization=True)
        rows = [[rank] for rank in dist.get_process_group_ranks(group)]
        return DeviceMesh.from_group([group, alone], device.type, mesh=rows, mesh_dim_names=names)
    return group_mesh(device, process_group)


def _rows_of(shard_group: Any) -> list[list[int]]:
    """The ranks of every shard group, of which each rank knows its own."""
    groups: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(groups, dist.get_process_group_ranks(shard_group))
    return [ranks for i, ranks in enumerate(groups) if ranks not in groups[:i]]
