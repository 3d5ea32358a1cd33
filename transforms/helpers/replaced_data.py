"""`parameter.data = value` of sharded parameters, where it gave a parameter of DDP other memory."""

from collections.abc import Sequence
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch.distributed._composable_state import _module_state_mapping
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor

from .parameters import assign_data, note_change
from .shared_memory import watch_memory
from .whole import shard_like, whole

_managers: WeakKeyDictionary[Any, dict[int, Any]] = WeakKeyDictionary()
"""Of each unit, what fully_shard manages its sharded parameters by: `model.to` moves none to which weak references lead."""


@torch.no_grad()
def replace_data(parameter: torch.Tensor, value: torch.Tensor) -> None:
    """`parameter.data = value`: the parameter has the memory of `value` from now on, or of its shard, and what was read off
    `parameter.data` before keeps what it holds. A whole `value` is copied. Raises ValueError if shape or dtype would change.
    Where a rank has the model whole, it is the whole parameter that gets other memory.
    """
    held: Any = getattr(parameter, "_held_whole", None)
    if held is not None:
        held.data = whole(value)
        return
    unit, managed = manager_of(parameter)
    if managed is None or value.shape != parameter.shape or value.dtype != parameter.dtype:
        assign_data(parameter, value)
        return
    sharded: Any = parameter
    part: Any = shard_like(value.detach(), sharded)
    note_change()
    unit.reshard()  # a forward without backward left it gathered
    sharded._local_tensor = local = part._local_tensor.contiguous()
    padded = managed._sharded_param_data
    if not local.storage_offset() and local.untyped_storage().nbytes() == padded.untyped_storage().nbytes():
        managed._sharded_param_data = padded.new_empty(0).set_(local.untyped_storage(), 0, padded.size())  # padded as well
    managed.reset_sharded_param()
    watch_memory(unit, parameter, value)  # needed for: shared_memory
    if isinstance(value, DTensor) and value.placements == sharded.placements:
        value._local_tensor = sharded._local_tensor  # it was copied to where it has padding


def replace_each_data(parameters: Sequence[torch.Tensor], values: Sequence[torch.Tensor]) -> None:
    """`p.data, q.data = values`: the values are those of before, also where they are each other's data."""
    for parameter, value in zip(parameters, [value.clone() for value in values], strict=True):
        replace_data(parameter, value)


def manager_of(parameter: Any) -> Any:
    """The unit that a sharded parameter belongs to, and what fully_shard manages it by there; None twice for any other."""
    if not isinstance(parameter, DTensor):
        return None, None
    found = _managed(parameter)
    if found is None:
        for unit in [module for module in list(_module_state_mapping) if isinstance(module, FSDPModule)]:
            group = unit._get_fsdp_state()._fsdp_param_group
            _managers[unit] = {id(managed.sharded_param): managed for managed in (group.fsdp_params if group else ())}
        found = _managed(parameter)
    return found or (None, None)


def _managed(parameter: Any) -> tuple[Any, Any] | None:
    for unit, managers in _managers.items():
        managed = managers.get(id(parameter))
        if managed is not None and managed.sharded_param is parameter:
            return unit, managed
    return None
