"""fully_shard with the arguments of DDP, for calls whose arguments are known only at run time."""

from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor
from torch.distributed.utils import _sync_params_and_buffers

from .class_names import keep_class_name
from .copies import copy_as_plain
from .ddp_buffers import broadcast_buffers_before_forward
from .ddp_gradients import average_plain_gradients, drop_unused_gradients
from .ddp_parts import gather_for_parts, gather_irregular_blocks, leave_to_others
from .ddp_units import plain_parameters, repeated_blocks
from .ddp_writes import keep_writes_in_forward
from .double_backward import allow_double_backward
from .evaluation import gather_once_in_evaluation
from .forward_by_name import gather_in_forward
from .gathered import allow_inference_first, enter_by_objects, reshard_after_forward, return_no_views
from .given_parameters import pass_parameters_on
from .gradients import read_sync_at_forwards
from .mixed import compute_as_whole
from .own_names import use_own_names, use_torchs_names
from .parameter_hooks import keep_parameter_hooks
from .rebind import parameter_slots, rebind_parameters
from .scaling import unscale_by_layout
from .shard_units import parts_with_forward
from .whole_states import keep_state_dicts_whole
from .zero_gradients import reset_shards_in_zero_grad


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
    """Shard `module` in place so that it trains as under DDP with the same arguments, and return it: with the first rank's
    parameters and buffers. Optimizers that exist already get the sharded parameters.

    Arguments about buckets, the graph and devices of the output change no result and are not used. Raises RuntimeError,
    as DDP does, for a module without a trainable parameter.
    """
    if isinstance(module, torch.jit.ScriptModule):  # needed for: scripted
        raise NotImplementedError("a scripted module takes no hooks and cannot be sharded: keep DDP for it")
    trained = [isinstance(p, DTensor) for p in module.parameters() if p.requires_grad]
    if isinstance(module, FSDPModule) or (trained and all(trained)):  # or part of a sharded model
        _shard_new_modules(module)
        return module
    names: set[str] = set(getattr(module, "_ddp_params_and_buffers_to_ignore", ()))
    elsewhere: set[Any] = {p for p in module.parameters() if isinstance(p, DTensor)}  # of a part that it shares with another
    of_others = {part for part in module.modules() if isinstance(part, FSDPModule)}  # units of such a part
    ignored = {p for name, p in nn.Module.named_parameters(module, remove_duplicate=False) if name in names} | elsewhere
    device = _device_of([p for p in module.parameters() if p not in ignored])
    mesh = init_device_mesh(device.type, (dist.get_world_size(),))
    if process_group is not None:  # needed for: ddp.process_group.set
        mesh = DeviceMesh.from_group(process_group, device.type)
    if device_mesh is not None:  # needed for: ddp.device_mesh.set
        mesh = device_mesh
    sync_now = True  # needed for: ddp.broadcast_buffers.set, ddp.forward_sync_buffers.set
    sync_later = True  # needed for: changing_buffers
    if broadcast_buffers is False:  # needed for: ddp.broadcast_buffers.set
        sync_now = False
        sync_later = False  # needed for: changing_buffers
    if forward_sync_buffers is not None:  # needed for: ddp.forward_sync_buffers.set
        sync_now = True
        sync_later = forward_sync_buffers  # needed for: changing_buffers
    buffers = [b for name, b in module.named_buffers() if name not in names]
    if not sync_now:  # needed for: ddp.broadcast_buffers.set, ddp.forward_sync_buffers.set
        buffers = []
    first = [*(p.detach() for p in module.parameters() if p not in ignored), *buffers]
    if not init_sync:  # needed for: ddp.init_sync.set
        first = []
    group = mesh.get_group()
    _sync_params_and_buffers(group, first, 250 * 1024**2, 0)
    finds_unused = False
    if find_unused_parameters:  # needed for: ddp.find_unused_parameters.set
        finds_unused = True
    if skip_all_reduce_unused_params:  # needed for: ddp.skip_all_reduce_unused_params.set
        finds_unused = False
    part: Any
    for part in parts_with_forward(module):
        if not any(p.requires_grad for p in part.parameters()):
            continue
        blocks = [] if finds_unused else repeated_blocks(part)  # a block that some ranks skip cannot be gathered by itself
        blocks = [block for block in blocks if elsewhere.isdisjoint(block.parameters())]
        left_out = ignored
        plain = plain_parameters(part, blocks) - ignored  # needed for: plain_parameters
        left_out = plain | ignored  # needed for: plain_parameters
        keywords: dict[str, Any] = {"ignored_params": left_out} if left_out else {}
        averaged = [p for p in part.parameters() if p in plain]  # needed for: plain_parameters
        slots = parameter_slots(part)  # needed for: earlier_holders
        _make_contiguous(part)
        _cast_buffers(part, getattr(mixed_precision, "buffer_dtype", None))  # needed for: ddp.mixed_precision.set
        own_names = use_torchs_names(part)  # needed for: own_names
        for unit in [*blocks, part]:
            if mixed_precision is not None:  # needed for: ddp.mixed_precision.set
                keywords["mp_policy"] = _ddp_precision(mixed_precision, unit is part)
            fully_shard(unit, mesh=mesh, **keywords)
            keep_class_name(unit)  # needed for: class_names
        use_own_names(own_names)  # needed for: own_names
        rebind_parameters(slots)  # needed for: earlier_holders
        leave_to_others(part, of_others)
        gather_irregular_blocks(part, blocks, group)
        gather_for_parts(part, blocks, elsewhere)
        keep_writes_in_forward([*blocks, part])  # needed for: parameter_writes
        reshard_after_forward(part)
        allow_inference_first(part)  # needed for: inference_mode
        keep_parameter_hooks(part)  # needed for: parameter_hooks
        average_plain_gradients(part, averaged, group)  # needed for: plain_parameters
        if finds_unused:  # needed for: ddp.find_unused_parameters.set
            drop_unused_gradients(part, group, elsewhere)
        allow_double_backward(part)  # needed for: create_graph
        for unit in [*blocks, part]:
            return_no_views(unit)
            enter_by_objects(unit)
            pass_parameters_on(unit)  # needed for: autograd_grad
        part._wrapped_like = "ddp"
        gather_in_forward(part)  # needed for: forward_by_name
        if sync_later:  # needed for: changing_buffers
            broadcast_buffers_before_forward(part, group, names)
    module._plain_parameters = {p for p in module.parameters() if not isinstance(p, DTensor)}
    module._wrapped_like = "ddp"
    unscale_by_layout()  # needed for: grad_scaler
    keep_state_dicts_whole(module)  # needed for: state_dicts
    compute_as_whole(module)  # needed for: whole_math
    gather_once_in_evaluation(module)  # needed for: evaluation
    read_sync_at_forwards(module)  # needed for: gradient_sync
    reset_shards_in_zero_grad()  # needed for: gradient_resets
    copy_as_plain(module)  # needed for: model_copies
    return module


def _shard_new_modules(module: Any) -> None:
    """Shard what a sharded module got since, such as a head: DDP was made anew around it. Each becomes a unit of its own."""
    mesh: Any = next(p for p in module.parameters() if isinstance(p, DTensor)).device_mesh
    plain = getattr(module, "_plain_parameters", set())
    parts = [m for child in module.modules() if child is not module for m in parts_with_forward(child)]
    around = [part for part in parts if not isinstance(part, FSDPModule)][::-1]  # those inside of others first
    for part in [*(p for p in parts if _is_new(p)), *(p for p in around if not _is_new(p))]:
        sharded: Any = {p for p in part.parameters() if isinstance(p, DTensor)}
        trained = {p for p in part.parameters(recurse=_is_new(part)) if p.requires_grad} - plain - sharded
        if trained:  # also a module of its own around sharded ones, as adapters are
            new = [p.detach() for p in part.parameters() if p not in sharded]
            _sync_params_and_buffers(mesh.get_group(), new, 250 * 1024**2, 0)
            slots = parameter_slots(part)  # needed for: earlier_holders
            given: Any = {"ignored_params": sharded} if sharded else {}  # needs torch 2.7
            fully_shard(part, mesh=mesh, **given)
            rebind_parameters(slots)  # needed for: earlier_holders
            gather_for_parts(part, [])
            reshard_after_forward(part)
            keep_parameter_hooks(part)  # needed for: parameter_hooks
            keep_state_dicts_whole(part)  # needed for: state_dicts
            compute_as_whole(part)  # needed for: whole_math
            copy_as_plain(part)  # needed for: model_copies
    if any(p.requires_grad and not isinstance(p, DTensor) and p not in plain for p in module.parameters()):
        raise NotImplementedError("a parameter came to a module after it was sharded: give it to a module of its own")


def _is_new(part: nn.Module) -> bool:
    return not any(isinstance(p, DTensor) for p in part.parameters())


def _device_of(parameters: list[Any]) -> torch.device:
    """The device of the parameters, made the current one: fully_shard computes there."""
    if not any(p.requires_grad for p in parameters):
        raise RuntimeError("no parameter of the module requires a gradient: leave it as it is, without sharding")
    device = parameters[0].device
    if any(p.device != device for p in parameters):
        raise NotImplementedError("the module lies on several devices, where fully_shard takes one: keep DDP for it")
    if device.type != "cpu" and device.index is not None:
        torch.get_device_module(device).set_device(device)
    return device


def _make_contiguous(module: nn.Module) -> None:  # by itself: nothing but the module shall hold what sharding replaces
    for parameter in module.parameters():
        parameter.data = parameter.data.contiguous()


def _cast_buffers(module: nn.Module, dtype: torch.dtype | None) -> None:
    for buffer in module.buffers() if dtype else ():
        if buffer.is_floating_point():
            buffer.data = buffer.data.to(dtype)


def _ddp_precision(mixed_precision: Any, is_root: bool) -> MixedPrecisionPolicy:
    """The policy of one unit for DDP's mixed_precision: parameters and the inputs of the root in param_dtype."""
    dtype = mixed_precision.param_dtype
    return MixedPrecisionPolicy(dtype, mixed_precision.reduce_dtype or dtype, cast_forward_inputs=is_root)
