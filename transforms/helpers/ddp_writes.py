"""Parameters that a model's own forward writes: momentum encoders, weights that are normalized in place."""

from typing import Any

import torch
from torch import nn
from torch.distributed.tensor import DTensor, Replicate

from .gathered import in_backward


def keep_writes_in_forward(units: list[Any]) -> None:
    """What a forward writes into gathered parameters goes into their shards, as under DDP: fully_shard would drop it."""
    for unit in units:
        _keep_writes(unit)


def _keep_writes(unit: Any) -> None:
    slots = [(owner, name, p) for owner in unit.modules() for name, p in owner._parameters.items() if isinstance(p, DTensor)]
    memory: dict[torch.Tensor, torch.Tensor] = {}

    def begin(*_: Any) -> None:
        gathered = [owner._parameters[name] for owner, name, _ in slots]
        memory.update({p: p.data for p in gathered if p is not None and not isinstance(p, DTensor)})

    def end(*_: Any) -> None:
        for owner, name, sharded in slots if not in_backward() else ():
            gathered = owner._parameters[name]
            if gathered is not None and gathered in memory:
                before = memory.pop(gathered)  # a tied one is in several slots
                write_changes(sharded, gathered.detach())
                if gathered.data_ptr() != before.data_ptr():  # `p.data = …`: the next gather goes to the old place
                    gathered.data = before
        memory.clear()

    unit.register_forward_pre_hook(torch.compiler.disable(begin))
    unit.register_forward_hook(torch.compiler.disable(end), prepend=True)


def take_writes(unit: Any, part: nn.Module) -> None:
    """What was written into gathered parameters of a part goes into their shards."""
    group, inside = unit._get_fsdp_state()._fsdp_param_group, {*part.modules()}
    for managed in group.fsdp_params if group and group.is_unsharded else ():
        if managed._module_info.module in inside:
            write_changes(managed.sharded_param, managed.unsharded_param.detach())


@torch.no_grad()
def write_changes(sharded: DTensor, gathered: torch.Tensor) -> None:
    """Copy this rank's part of what differs; what is equal keeps the digits that a gather in a smaller type lost."""
    mesh = sharded.device_mesh
    whole = DTensor.from_local(gathered, mesh, [Replicate()] * mesh.ndim, run_check=False)
    part = whole.redistribute(mesh, sharded.placements).to_local()
    shard = sharded.to_local()
    same = part == shard.to(part.dtype)
    if not same.all():
        shard.copy_(torch.where(same, shard, part.to(shard.dtype)))
