"""Whole tensors out of sharded ones, and back, anywhere in dicts, lists and tuples."""

import copy
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor, Partial, distribute_tensor

untraced: Any = torch.compiler.disable


@untraced  # needed for: compiled
def whole(value: Any, device: torch.device | str | None = None, keep_ties: bool = True) -> Any:
    """`value` with every DTensor in its dicts, lists and tuples gathered, one at a time; all ranks call it.

    Containers keep their type (and a state dict its `_metadata`); where nothing was sharded, `value` itself is returned.
    What is gathered shares no memory with the shards and lies where they do, and tied parameters stay one tensor unless
    `keep_ties` is False. With `device`, each tensor is moved there at once.
    """
    tied: dict[tuple[int, torch.Size], torch.Tensor] = {}

    def gather(tensor: torch.Tensor) -> torch.Tensor:
        if not isinstance(tensor, DTensor):
            return tensor if device is None else tensor.to(device)
        if tensor.is_meta:  # needed for: meta
            return torch.empty(tensor.shape, dtype=tensor.dtype, device="meta")
        held = getattr(tensor, "_held_whole", None)  # needed for: each_rank
        if held is not None:  # needed for: each_rank
            return held.detach().clone().to(device or tensor.device)
        shard = tensor.to_local()
        on_mesh: Any = tensor.to(tensor.device_mesh.device_type)  # shards may be offloaded
        is_sum = any(place.is_partial() for place in tensor.placements)
        averages = tensor.requires_grad and not is_sum
        full = on_mesh.full_tensor(grad_placements=[Partial()] * len(tensor.placements) if averages else None)
        if full.requires_grad:  # what a rank computes with it gives it a gradient of the rank's own
            mesh = on_mesh.device_mesh

            def averaged(gradient: torch.Tensor) -> torch.Tensor:
                own: Any = getattr(tensor, "_own_gradients", None)  # needed for: autograd_grad
                if own is not None:  # needed for: autograd_grad
                    own.append(gradient)
                    return torch.zeros_like(gradient)
                return (_summed(gradient, mesh) if is_sum else gradient) / mesh.size()

            full.register_hook(averaged)
        if full.data_ptr() == shard.data_ptr() or full.untyped_storage().nbytes() > full.nbytes:
            full = full.clone()  # one rank, or a copy on every rank; or a view that would be saved with the padding of shards
        full = full.to(device or tensor.device)
        if not keep_ties:
            return full
        first = tied.setdefault((shard.data_ptr(), full.shape), full)
        return first if first is full or torch.equal(first, full) else full

    return map_tensors(gather, value)


def state_entry(value: Any) -> Any:
    """What goes into a state dict for `value`, whatever it is: for a sharded tensor the whole one, anything else itself."""
    gathered = whole(value)
    return gathered.detach() if gathered is not value and isinstance(gathered, torch.Tensor) else gathered


def _summed(gradient: torch.Tensor, mesh: Any) -> torch.Tensor:
    """The sum of all ranks' gradients, of a number that is itself a sum over ranks."""
    gradient = gradient.clone()
    for dimension in range(mesh.ndim):
        dist.all_reduce(gradient, group=mesh.get_group(dimension))
    return gradient


def map_tensors(change: Callable[[Any], Any], value: Any, of: type = torch.Tensor) -> Any:
    """`value` with `change` applied to the tensors in its dicts, lists and tuples; what stays equal is the same object.

    With `of`, to objects of that class instead.
    """
    if isinstance(value, of):
        return change(value)
    if isinstance(value, dict):
        changed = {key: map_tensors(change, item, of) for key, item in value.items()}
        if all(changed[key] is item for key, item in value.items()):
            return value
        result = copy.copy(value)  # with attributes such as `_metadata`
        result.update(changed)
        return result
    if isinstance(value, (list, tuple)):
        items = [map_tensors(change, item, of) for item in value]
        if all(new is old for new, old in zip(items, value, strict=True)):
            return value
        return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
    return value


def shard_like(value: torch.Tensor, live: torch.Tensor) -> torch.Tensor:
    """This rank's part of `value`, cut as `live` is sharded, without communication; `value` itself where shapes differ."""
    if not isinstance(live, DTensor) or value.shape != live.shape:
        return value
    if isinstance(value, DTensor):
        if value.device_mesh == live.device_mesh:
            return value.redistribute(placements=live.placements)
        value = value.full_tensor()
    shards: Any = getattr(value, "local_shards", None)  # needed for: state_dict_type
    if shards is not None:  # needed for: state_dict_type
        part: Any = torch.empty_like(live, dtype=value.dtype)  # of a ShardedTensor of FSDP1, which was cut by the same rule
        for shard in shards():
            part.to_local().copy_(shard.tensor)
        return part
    part = distribute_tensor(value.detach(), live.device_mesh, live.placements, src_data_rank=None)
    part = part.clone()  # a view would keep the whole tensor's memory
    return part if live.is_meta else part.to(live.device)
