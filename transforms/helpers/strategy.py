"""The sharding strategy of a unit, in FSDP1's terms."""

from typing import Any

from torch.distributed.fsdp import FSDPModule, ShardingStrategy


def strategy_of(module: Any) -> ShardingStrategy:
    """`module.sharding_strategy`: of a sharded module, what its mesh and its resharding after forward amount to."""
    if not isinstance(module, FSDPModule):
        return module.sharding_strategy
    groups: list[Any] = [unit._get_fsdp_state()._fsdp_param_group for unit in module.modules() if isinstance(unit, FSDPModule)]  # type: ignore[attr-defined]
    group = next(group for group in groups if group is not None)
    if group.mesh_info.shard_mesh_size == 1 and group.mesh_info.mesh.size() > 1:
        return ShardingStrategy.NO_SHARD
    is_hybrid, reshards = group.mesh_info.replicate_mesh_dim is not None, group.post_forward_mesh_info is not None
    if is_hybrid:
        return ShardingStrategy.HYBRID_SHARD if reshards else ShardingStrategy._HYBRID_SHARD_ZERO2
    return ShardingStrategy.FULL_SHARD if reshards else ShardingStrategy.SHARD_GRAD_OP
