"""fully_shard with the arguments of FSDP1, for calls whose arguments are known only at run time."""

from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import CPUOffloadPolicy, FSDPModule, fully_shard

from .class_names import keep_class_name
from .forward_by_name import gather_in_forward
from .gathered import allow_inference_first, reshard_after_evaluation, return_no_views
from .low_precision_buffers import cast_buffers
from .own_names import use_own_names, use_torchs_names
from .parts import compute_with_parts
from .rebind import parameter_slots, rebind_parameters
from .shard_meshes import HYBRID_STRATEGIES, group_mesh, strategy_mesh
from .shard_precision import full_precision_units, learn_in_precision, precision_policy
from .shard_units import parts_with_forward, policy_units
from .unused_parameters import zeros_for_unused
from .zero_gradients import reset_shards_in_zero_grad

STRATEGIES = ("FULL_SHARD", "SHARD_GRAD_OP", "NO_SHARD", "HYBRID_SHARD", "_HYBRID_SHARD_ZERO2")


def shard_like_fsdp1(
    module: Any,
    process_group: Any = None,  # needed for: meshes
    sharding_strategy: Any = None,
    cpu_offload: Any = None,  # needed for: fsdp1.cpu_offload
    auto_wrap_policy: Any = None,  # needed for: fsdp1.auto_wrap_policy
    backward_prefetch: Any = None,  # needed for: fsdp1.backward_prefetch
    mixed_precision: Any = None,  # needed for: fsdp1.mixed_precision
    ignored_modules: Any = None,  # needed for: ignored
    param_init_fn: Any = None,  # needed for: fsdp1.param_init_fn, meta
    device_id: Any = None,
    sync_module_states: bool = False,  # needed for: fsdp1.sync_module_states
    forward_prefetch: bool = False,  # needed for: fsdp1.forward_prefetch
    limit_all_gathers: bool = True,  # needed for: fsdp1.limit_all_gathers
    use_orig_params: bool = False,  # needed for: fsdp1.use_orig_params
    ignored_states: Any = None,  # needed for: ignored
    device_mesh: DeviceMesh | None = None,  # needed for: meshes
    ignored_parameters: Any = None,  # needed for: ignored
) -> Any:
    """Shard `module` in place as FSDP1 would have wrapped it with the same arguments, and return it.

    Takes the place of the class in calls, functools.partial and enable_wrap. Optimizers that exist already get the
    sharded parameters, as with use_orig_params. What torch 2.0 called ignored_parameters are ignored_states.
    backward_prefetch, forward_prefetch, limit_all_gathers and use_orig_params change no result and are not used. Raises
    ValueError for an unknown strategy and TypeError for what a policy returns but no unit takes.
    """
    if isinstance(module, FSDPModule):
        return module
    device = _compute_device(module, device_id)
    skipped: set[nn.Module] = set()
    ignored: set[nn.Parameter] = set()
    skipped, ignored = _ignored(module, ignored_modules, ignored_states or ignored_parameters)  # needed for: ignored
    mesh = group_mesh(device)
    mesh = strategy_mesh(device, _strategy_name(sharding_strategy), process_group, device_mesh)  # needed for: meshes
    chosen: list[tuple[nn.Module, dict[str, Any]]] = []
    if auto_wrap_policy is not None:  # needed for: fsdp1.auto_wrap_policy
        chosen = policy_units(module, auto_wrap_policy, skipped, ignored)
        if mixed_precision is not None:  # needed for: fsdp1.mixed_precision
            chosen = full_precision_units(module, chosen, mixed_precision, skipped)
    roots = parts_with_forward(module)
    slots = parameter_slots(module)  # needed for: earlier_holders
    synchronized: set[torch.Tensor] = set()  # needed for: fsdp1.sync_module_states
    for unit, own in [*chosen, *((root, {}) for root in roots)]:
        if isinstance(unit, FSDPModule):
            continue
        _materialize(unit, own.get("param_init_fn", param_init_fn), device, skipped)  # needed for: fsdp1.param_init_fn, meta
        _move(unit, device, ignored, skipped)
        dtype = getattr(own.get("mixed_precision", mixed_precision), "buffer_dtype", None)  # needed for: fsdp1.mixed_precision
        if dtype is not None:  # needed for: fsdp1.mixed_precision
            cast_buffers(_own_modules(unit, skipped), dtype)
        if sync_module_states:  # needed for: fsdp1.sync_module_states
            _broadcast(unit, mesh, ignored, synchronized)
        given: dict[str, Any] = {"sharding_strategy": sharding_strategy}
        given["cpu_offload"] = cpu_offload  # needed for: fsdp1.cpu_offload
        given["mixed_precision"] = mixed_precision  # needed for: fsdp1.mixed_precision
        given |= _known_arguments(own)  # needed for: fsdp1.mixed_precision, unit_arguments
        arguments = _unit_arguments(device, unit in roots, mesh, given)
        if ignored:  # needed for: ignored
            arguments["ignored_params"] = ignored
        own_names = use_torchs_names(unit)  # needed for: own_names
        fully_shard(unit, **arguments)
        use_own_names(own_names)  # needed for: own_names
        keep_class_name(unit)  # needed for: class_names
        gather_in_forward(unit)  # needed for: forward_by_name
        return_no_views(unit)
    rebind_parameters(slots)  # needed for: earlier_holders
    for root in roots:
        reshard_after_evaluation(root)
        allow_inference_first(root)  # needed for: inference_mode
        learn_in_precision(root)  # needed for: fsdp1.mixed_precision, unit_arguments
        zeros_for_unused(root)
    module._ignored_by_sharding = ignored  # needed for: ignored
    module._wrapped_like = "fsdp1"
    compute_with_parts(module)  # needed for: part_math
    reset_shards_in_zero_grad()  # needed for: gradient_resets
    return module


def _strategy_name(strategy: Any) -> str:
    """The member's name of a ShardingStrategy, of its text, or of None; raises ValueError for anything else."""
    name = "FULL_SHARD" if strategy is None else getattr(strategy, "name", str(strategy)).split(".")[-1].upper()
    if name not in STRATEGIES:
        raise ValueError(f"sharding_strategy {strategy!r} is not one of {', '.join(STRATEGIES)}")
    return name


def _compute_device(module: nn.Module, device_id: Any) -> torch.device:
    """Where FSDP1 would have computed: on device_id, else where the module is, else on the accelerator."""
    present = {p.device for p in module.parameters()} - {torch.device("cpu"), torch.device("meta")}
    found = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    device = found or torch.device("cpu")
    if device_id is not None:
        device = torch.device(device.type, device_id) if isinstance(device_id, int) else torch.device(device_id)
    elif present:
        device = next(iter(present))
    if device.type != "cpu" and device.index is not None:
        torch.get_device_module(device).set_device(device)
    return device


def _ignored(module: nn.Module, ignored_modules: Any, ignored_states: Any) -> tuple[set[nn.Module], set[nn.Parameter]]:
    """Ignored modules with all that is in them, and ignored parameters; those of units that are sharded already too."""
    states = list(ignored_states or ())
    roots = [*(ignored_modules or ()), *(state for state in states if isinstance(state, nn.Module))]
    modules = {inner for root in roots for inner in root.modules()}
    ignored = {p for inner in modules for p in inner.parameters()} | {p for p in states if isinstance(p, nn.Parameter)}
    for unit in module.modules():
        ignored |= getattr(unit, "_ignored_by_sharding", set())
    return modules, ignored


def _known_arguments(own: dict[str, Any]) -> dict[str, Any]:
    """What a CustomPolicy returned for one unit, without what changes no result."""
    no_effect = {"backward_prefetch", "forward_prefetch", "limit_all_gathers", "use_orig_params", "param_init_fn"}
    known = {"sharding_strategy", "cpu_offload", "mixed_precision", "process_group", "device_mesh"}
    unknown = own.keys() - known - no_effect
    if unknown:
        raise TypeError(f"the policy returned arguments that one unit cannot have: {', '.join(sorted(unknown))}")
    return {key: value for key, value in own.items() if key in known}


def _unit_arguments(device: torch.device, is_root: bool, mesh: DeviceMesh, own: dict[str, Any]) -> dict[str, Any]:
    """fully_shard's keyword arguments for one unit."""
    strategy = _strategy_name(own["sharding_strategy"])
    arguments: dict[str, Any] = {"mesh": mesh}
    group, grid = own.get("process_group"), own.get("device_mesh")  # needed for: unit_arguments
    fits = (mesh.ndim == 2) == (strategy in ("NO_SHARD", *HYBRID_STRATEGIES))  # needed for: unit_arguments
    if group is not None or grid is not None or not fits:  # needed for: unit_arguments
        arguments["mesh"] = strategy_mesh(device, strategy, group, grid)
    policy = precision_policy(own.get("mixed_precision"), is_root)  # needed for: fsdp1.mixed_precision, unit_arguments
    arguments["mp_policy"] = policy  # needed for: fsdp1.mixed_precision, unit_arguments
    if strategy in ("SHARD_GRAD_OP", "_HYBRID_SHARD_ZERO2", "NO_SHARD"):
        arguments["reshard_after_forward"] = False  # else the default: as in FSDP1, units reshard and the root does not
    if getattr(own.get("cpu_offload"), "offload_params", False):  # needed for: fsdp1.cpu_offload, unit_arguments
        arguments["offload_policy"] = CPUOffloadPolicy(pin_memory=device.type != "cpu")
    return arguments


def _own_modules(unit: nn.Module, ignored_modules: set[nn.Module]) -> list[Any]:
    """The modules of a unit, breadth first as FSDP1 initialized them, without nested units and ignored modules."""
    queue: list[Any] = [unit]
    for module in queue:
        queue += [
            child
            for child in module.children()
            if child not in queue and child not in ignored_modules and not isinstance(child, FSDPModule)
        ]
    return queue


def _materialize(unit: nn.Module, param_init_fn: Any, device: torch.device, ignored_modules: set[nn.Module]) -> None:
    """Give a unit on the meta device memory and values, by param_init_fn or by each module's reset_parameters."""
    modules = _own_modules(unit, ignored_modules)
    if not any(t.is_meta for m in modules for t in [*m.parameters(recurse=False), *m.buffers(recurse=False)]):
        return
    for module in modules:
        if param_init_fn is not None:
            param_init_fn(module)
        elif [*module.parameters(recurse=False), *module.buffers(recurse=False)]:
            module.to_empty(device=device, recurse=False)
            with torch.no_grad():
                module.reset_parameters()


def _move(unit: nn.Module, device: torch.device, ignored: set[nn.Parameter], ignored_modules: set[nn.Module]) -> None:
    """Put a unit's parameters, contiguous, and its buffers on the device."""
    for module in _own_modules(unit, ignored_modules):
        for parameter in module.parameters(recurse=False):
            if parameter not in ignored and not parameter.is_meta:
                parameter.data = parameter.data.to(device).contiguous()
        for name, buffer in module._buffers.items():
            if buffer is not None:
                module._buffers[name] = buffer.to(device)


def _broadcast(unit: nn.Module, mesh: DeviceMesh, ignored: set[nn.Parameter], synchronized: set[torch.Tensor]) -> None:
    """sync_module_states: every rank gets the values of the first rank of the mesh."""
    parameters = [p for module in _own_modules(unit, set()) for p in module.parameters(recurse=False) if p not in ignored]
    for tensor in [*parameters, *unit.buffers()]:
        if tensor not in synchronized:
            synchronized.add(tensor)
            for dim in reversed(range(mesh.ndim)):
                group = mesh.get_group(dim)
                dist.broadcast(tensor.detach(), dist.get_global_rank(group, 0), group=group)
