"""The sharding strategy, the precision and the device of a unit, in FSDP1's terms."""

from typing import Any

import torch
from torch.distributed.fsdp import FSDPModule, ShardingStrategy


def strategy_of(module: Any) -> ShardingStrategy:
    """`module.sharding_strategy`: of a sharded module, what its mesh and its resharding after forward amount to."""
    if not isinstance(module, FSDPModule):
        return module.sharding_strategy
    states: list[Any] = [unit._get_fsdp_state() for unit in module.modules() if isinstance(unit, FSDPModule)]  # type: ignore[attr-defined]
    state = next(state for state in states if state._fsdp_param_group is not None)
    group = state._fsdp_param_group
    if group.mesh_info.shard_mesh_size == 1 and group.mesh_info.mesh.size() > 1:
        return ShardingStrategy.NO_SHARD
    is_hybrid = group.mesh_info.replicate_mesh_dim is not None
    by_itself = getattr(state, "_auto_reshard_after_forward", False)  # the root stays gathered, which nobody has asked for
    reshards = group.post_forward_mesh_info is not None or by_itself
    if is_hybrid:
        return ShardingStrategy.HYBRID_SHARD if reshards else ShardingStrategy._HYBRID_SHARD_ZERO2
    return ShardingStrategy.FULL_SHARD if reshards else ShardingStrategy.SHARD_GRAD_OP


def compute_device_of(module: Any) -> torch.device:
    """`module.compute_device`: where a sharded module gathers its parameters and computes, also if they lie elsewhere."""
    return module._get_fsdp_state()._device if isinstance(module, FSDPModule) else module.compute_device  # type: ignore[attr-defined]


def mixed_precision_of(module: Any) -> Any:
    """`module.mixed_precision`: of a sharded module its policy, which says `param_dtype` and `reduce_dtype` by the same names."""
    return module._get_fsdp_state()._mp_policy if isinstance(module, FSDPModule) else module.mixed_precision  # type: ignore[attr-defined]
