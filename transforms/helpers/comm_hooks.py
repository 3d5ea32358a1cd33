"""DDP's and FSDP1's communication hooks on sharded models."""

import dataclasses
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.fsdp import FSDPModule


def register_comm_hook(model: Any, state: Any, hook: Any) -> None:
    """`model.register_comm_hook(state, hook)`; on a sharded model, torch's compressing hooks say what gradients travel in.

    Raises NotImplementedError for any other hook on a sharded model.
    """
    sharded: list[Any] = [unit for unit in model.modules() if isinstance(unit, FSDPModule)]
    if not sharded:
        model.register_comm_hook(state, hook)
        return
    dtypes = {"allreduce_hook": None, "fp16_compress_hook": torch.float16, "bf16_compress_hook": torch.bfloat16}
    name = getattr(hook, "__name__", type(hook).__name__)
    if name not in dtypes or not hook.__module__.startswith("torch.distributed.algorithms."):
        raise NotImplementedError(f"fully_shard has no place for the communication hook {name}: keep DDP, or leave it out")
    dtype = dtypes[name]
    for unit in sharded if dtype else ():
        unit._gradients_travel_in = dtype  # those of its plain parameters too
        if hasattr(unit, "set_custom_reduce_scatter"):
            unit.set_custom_reduce_scatter(_compressing_reduce_scatter(dtype))
        elif group := unit._get_fsdp_state()._fsdp_param_group:  # before torch 2.9; accumulates in the dtype, too
            group.mp_policy = dataclasses.replace(group.mp_policy, reduce_dtype=dtype)
            group._init_mp_dtypes()


def register_comm_hook_type(hook_type: Any, model: Any, state: Any = None) -> None:
    """`register_ddp_comm_hook(hook_type, model, state)`, whose hook a sharded model takes as `register_comm_hook` says."""
    if any(isinstance(unit, FSDPModule) for unit in model.modules()):
        register_comm_hook(model, state, hook_type.value.keywords["comm_hook"])
    else:
        hook_type.value(model=model, state=state)


def _compressing_reduce_scatter(dtype: Any) -> Any:
    """A reduce-scatter that sums in `dtype`, divided before, as DDP's compressing hooks do."""

    def reduce_scatter(output_tensor: torch.Tensor, input_tensor: torch.Tensor, group: Any, op: Any, **_: Any) -> None:
        compressed = input_tensor.to(dtype)
        if op == dist.ReduceOp.AVG:
            compressed = compressed / dist.get_world_size(group)
        part = torch.empty_like(output_tensor, dtype=dtype)
        dist.reduce_scatter_tensor(part, compressed, group=group)
        output_tensor.copy_(part)

    communication: Any = reduce_scatter
    communication.allocate = torch.empty
    return communication
