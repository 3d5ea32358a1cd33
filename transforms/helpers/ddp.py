"""fully_shard with the arguments of DDP, for calls whose arguments are known only at run time."""

from typing import Any

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard

from .class_names import keep_class_name
from .ddp_buffers import broadcast_buffers_before_forward, broadcast_from_first_rank
from .ddp_gradients import average_plain_gradients, drop_unused_gradients
from .ddp_parts import gather_for_parts, gather_irregular_blocks
from .ddp_units import plain_parameters, repeated_blocks
from .ddp_writes import keep_writes_in_forward
from .double_backward import allow_double_backward
from .gathered import allow_inference_first, reshard_after_forward, return_no_views
from .parameter_hooks import keep_parameter_hooks
from .rebind import parameter_slots, rebind_parameters
from .scaling import unscale_by_layout
from .shard_meshes import group_mesh
from .shard_units import parts_with_forward
from .wrapped import record_wrapper


def shard_like_ddp(
    module: Any,
    device_ids: Any = None,  # needed for: ddp.device_ids
    output_device: Any = None,  # needed for: ddp.output_device
    dim: int = 0,  # needed for: ddp.dim
    broadcast_buffers: bool | None = True,  # needed for: ddp.broadcast_buffers
    init_sync: bool = True,  # needed for: ddp.init_sync
    process_group: Any = None,  # needed for: ddp.process_group
    bucket_cap_mb: Any = None,  # needed for: ddp.bucket_cap_mb
    find_unused_parameters: bool = False,  # needed for: ddp.find_unused_parameters
    check_reduction: bool = False,  # needed for: ddp.check_reduction
    gradient_as_bucket_view: bool = False,  # needed for: ddp.gradient_as_bucket_view
    static_graph: bool = False,  # needed for: ddp.static_graph
    delay_all_reduce_named_params: Any = None,  # needed for: ddp.delay_all_reduce_named_params
    param_to_hook_all_reduce: Any = None,  # needed for: ddp.param_to_hook_all_reduce
    mixed_precision: Any = None,  # needed for: ddp.mixed_precision
    device_mesh: DeviceMesh | None = None,  # needed for: ddp.device_mesh
    skip_all_reduce_unused_params: bool = False,  # needed for: ddp.skip_all_reduce_unused_params
    bucket_cap_mb_list: Any = None,  # needed for: ddp.bucket_cap_mb_list
    batched_grad_copy: bool = False,  # needed for: ddp.batched_grad_copy
    forward_sync_buffers: bool | None = None,  # needed for: ddp.forward_sync_buffers
) -> Any:
    """Shard `module` in place so that it trains as under DDP with the same arguments, and return it.

    The first rank's parameters and buffers reach all ranks, buffers again before each forward. Optimizers that exist
    already get the sharded parameters. Arguments about buckets, the graph and devices of the output change no result
    and are not used. Raises RuntimeError, as DDP does, for a module without a trainable parameter.
    """
    if isinstance(module, FSDPModule):
        return module
    names: set[str] = set(getattr(module, "_ddp_params_and_buffers_to_ignore", ()))
    ignored = {p for name, p in module.named_parameters(remove_duplicate=False) if name in names}
    device = _device_of(module, ignored)
    mesh = group_mesh(device)
    if process_group is not None:  # needed for: ddp.process_group.set
        mesh = group_mesh(device, process_group)
    if device_mesh is not None:  # needed for: ddp.device_mesh.set
        mesh = device_mesh
    sync_now = True
    sync_later = True  # needed for: changing_buffers
    if broadcast_buffers is False:  # needed for: ddp.broadcast_buffers.set
        sync_now = False
        sync_later = False  # needed for: changing_buffers
    if forward_sync_buffers is not None:  # needed for: ddp.forward_sync_buffers.set
        sync_now = True
        sync_later = forward_sync_buffers  # needed for: changing_buffers
    buffers = [b for name, b in module.named_buffers() if sync_now and name not in names]
    first = [*(p.detach() for p in module.parameters() if p not in ignored), *buffers]
    if not init_sync:  # needed for: ddp.init_sync.set
        first = []
    broadcast_from_first_rank(first, mesh.get_group())
    for part in parts_with_forward(module):
        if any(p.requires_grad for p in part.parameters()):
            _shard_part(
                part,
                mesh,
                ignored,
                find_unused_parameters=find_unused_parameters,  # needed for: ddp.find_unused_parameters.set
                every_rank_uses_all=skip_all_reduce_unused_params,  # needed for: ddp.skip_all_reduce_unused_params.set
                mixed_precision=mixed_precision,  # needed for: ddp.mixed_precision.set
            )
            if sync_later:  # needed for: changing_buffers
                broadcast_buffers_before_forward(part, mesh.get_group(), names)
    record_wrapper(module, "ddp")
    return module


def _shard_part(
    module: Any,
    mesh: DeviceMesh,
    ignored: set[nn.Parameter],
    find_unused_parameters: bool = False,  # needed for: ddp.find_unused_parameters.set
    every_rank_uses_all: bool = False,  # needed for: ddp.skip_all_reduce_unused_params.set
    mixed_precision: Any = None,  # needed for: ddp.mixed_precision.set
) -> None:
    """Shard what has a forward, its repeated blocks as units of their own."""
    finds_unused = False
    if find_unused_parameters:  # needed for: ddp.find_unused_parameters.set
        finds_unused = True
    if every_rank_uses_all:  # needed for: ddp.skip_all_reduce_unused_params.set
        finds_unused = False
    blocks = [] if finds_unused else repeated_blocks(module)  # a block that some ranks skip cannot be gathered by itself
    plain = plain_parameters(module, blocks) - ignored
    averaged = [p for p in module.parameters() if p in plain]  # in the same order on every rank
    keywords: dict[str, Any] = {"ignored_params": plain | ignored} if plain or ignored else {}
    slots = parameter_slots(module)
    _make_contiguous(module)
    _cast_buffers(module, getattr(mixed_precision, "buffer_dtype", None))  # needed for: ddp.mixed_precision.set
    for unit in [*blocks, module]:
        if mixed_precision is not None:  # needed for: ddp.mixed_precision.set
            keywords["mp_policy"] = _ddp_precision(mixed_precision, unit is module)
        fully_shard(unit, mesh=mesh, **keywords)
        keep_class_name(unit)
    rebind_parameters(slots)
    gather_irregular_blocks(module, blocks, mesh.get_group())
    gather_for_parts(module, blocks)
    keep_writes_in_forward([*blocks, module])  # needed for: parameter_writes
    reshard_after_forward(module)
    allow_inference_first(module)  # needed for: inference_mode
    keep_parameter_hooks(module)  # needed for: parameter_hooks
    average_plain_gradients(module, averaged, mesh.get_group())
    if averaged:  # needed for: grad_scaler
        unscale_by_layout()
    if finds_unused:  # needed for: ddp.find_unused_parameters.set
        drop_unused_gradients(module, mesh.get_group())
    allow_double_backward(module)  # needed for: create_graph
    for unit in [*blocks, module]:
        return_no_views(unit)
    record_wrapper(module, "ddp")


def _device_of(module: nn.Module, ignored: set[nn.Parameter]) -> torch.device:
    """The device of the parameters that are not ignored, made the current one: fully_shard computes there."""
    managed = [p for p in module.parameters() if p not in ignored]
    if not any(p.requires_grad for p in managed):
        raise RuntimeError("no parameter of the module requires a gradient: leave it as it is, without sharding")
    device = managed[0].device
    if len({p.device for p in managed}) > 1:
        raise NotImplementedError("the module lies on several devices, where fully_shard takes one: keep DDP for it")
    if device.type != "cpu" and device.index is not None:
        torch.get_device_module(device).set_device(device)
    return device


def _make_contiguous(module: nn.Module) -> None:
    for parameter in module.parameters():
        if not parameter.is_contiguous():
            parameter.data = parameter.data.contiguous()


def _cast_buffers(module: nn.Module, dtype: torch.dtype | None) -> None:
    for buffer in module.buffers() if dtype else ():
        if buffer.is_floating_point():
            buffer.data = buffer.data.to(dtype)


def _ddp_precision(mixed_precision: Any, is_root: bool) -> MixedPrecisionPolicy:
    """The policy of one unit for DDP's mixed_precision: parameters and the inputs of the root in param_dtype."""
    dtype = mixed_precision.param_dtype
    return MixedPrecisionPolicy(dtype, mixed_precision.reduce_dtype or dtype, cast_forward_inputs=is_root)
