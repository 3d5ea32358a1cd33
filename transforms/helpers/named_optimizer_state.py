"""FSDP1's optimizer state dicts, keyed by parameter names: what its functions wrote and read, for sharded models."""

import copy
from functools import partial
from itertools import chain, islice
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import DTensor, distribute_tensor

from .optimizer_state import shard_entries
from .parameters import resharded
from .state_kinds import get_state_dict_type
from .units import fsdp1_class
from .whole import map_tensors, shard_like, whole


def optim_state_dict(model: nn.Module, optim: Any, optim_state_dict: Any = None, group: Any = None) -> dict[str, Any]:
    """`FSDP.optim_state_dict(...)`: by name, in the kind that `set_state_dict_type` chose. All ranks call it."""
    old = fsdp1_class(model)  # needed for: old_wrappers
    if old is not None:  # needed for: old_wrappers
        return old.optim_state_dict(model, optim, optim_state_dict, group)
    settings = get_state_dict_type(model)
    config = getattr(settings, "optim_state_dict_config", None)
    device = "cpu" if getattr(config, "offload_to_cpu", True) else None
    state = optim.state_dict() if optim_state_dict is None else optim_state_dict
    if settings is None or settings.state_dict_type.name == "FULL_STATE_DICT":
        return full_by_name(model, optim, state, getattr(config, "rank0_only", False), device, group)
    return shards_by_name(model, optim, state, device)


def full_optim_state_dict(
    model: nn.Module, optim: Any, optim_input: Any = None, rank0_only: bool = True, group: Any = None
) -> dict[str, Any]:
    """`FSDP.full_optim_state_dict(...)`: whole tensors by name, on the CPU; {} on other ranks with `rank0_only`."""
    old = fsdp1_class(model)  # needed for: old_wrappers
    if old is not None:  # needed for: old_wrappers
        return old.full_optim_state_dict(model, optim, optim_input, rank0_only, group)
    return full_by_name(model, optim, optim.state_dict(), rank0_only, "cpu", group)


def sharded_optim_state_dict(model: nn.Module, optim: Any, group: Any = None) -> dict[str, Any]:
    """`FSDP.sharded_optim_state_dict(...)`: DTensors by name, on the CPU."""
    old = fsdp1_class(model)  # needed for: old_wrappers
    if old is not None:  # needed for: old_wrappers
        return old.sharded_optim_state_dict(model, optim, group)
    return shards_by_name(model, optim, optim.state_dict(), "cpu")


def optim_state_dict_to_load(
    model: Any,
    optim: Any,
    optim_state_dict: Any,
    is_named_optimizer: bool = False,
    load_directly: bool = False,
    group: Any = None,
) -> dict[str, Any]:
    """`FSDP.optim_state_dict_to_load(...)`: what `optim.load_state_dict` takes, sharded and keyed as `optim` does it.

    With a full state dict and rank0_only chosen, rank 0's is distributed and the other ranks' is ignored.
    """
    if isinstance(model, dict):  # the order of torch 2.0
        model, optim, optim_state_dict = optim, optim_state_dict, model
    old = fsdp1_class(model)  # needed for: old_wrappers
    if old is not None:  # needed for: old_wrappers
        return old.optim_state_dict_to_load(model, optim, optim_state_dict, is_named_optimizer, load_directly, group)
    settings = get_state_dict_type(model)
    from_rank0 = getattr(getattr(settings, "optim_state_dict_config", None), "rank0_only", False)
    result = _loadable(optim_state_dict, model, _state_groups(model, None, optim), from_rank0, group, is_named_optimizer)
    if load_directly:
        optim.load_state_dict(result)
    return result


def shard_full_optim_state_dict(
    full_optim_state_dict: dict[str, Any], model: nn.Module, optim_input: Any = None, optim: Any = None
) -> dict[str, Any]:
    """`FSDP.shard_full_optim_state_dict(...)`: as `optim_state_dict_to_load`; every rank has the whole state."""
    old = fsdp1_class(model)  # needed for: old_wrappers
    if old is not None:  # needed for: old_wrappers
        return old.shard_full_optim_state_dict(full_optim_state_dict, model, optim_input, optim)
    return _loadable(full_optim_state_dict, model, _state_groups(model, optim_input, optim))


def scatter_full_optim_state_dict(
    full_optim_state_dict: dict[str, Any] | None,
    model: nn.Module,
    optim_input: Any = None,
    optim: Any = None,
    group: Any = None,
) -> dict[str, Any]:
    """`FSDP.scatter_full_optim_state_dict(...)`: as `optim_state_dict_to_load`; rank 0 alone has the whole state."""
    old = fsdp1_class(model)  # needed for: old_wrappers
    if old is not None:  # needed for: old_wrappers
        return old.scatter_full_optim_state_dict(full_optim_state_dict, model, optim_input, optim, group)
    return _loadable(full_optim_state_dict or {}, model, _state_groups(model, optim_input, optim), True, group)


def flatten_sharded_optim_state_dict(
    sharded_optim_state_dict: dict[str, Any], model: nn.Module, optim: Any
) -> dict[str, Any]:
    """`FSDP.flatten_sharded_optim_state_dict(...)`: as `optim_state_dict_to_load`, for sharded tensors."""
    old = fsdp1_class(model)  # needed for: old_wrappers
    if old is not None:  # needed for: old_wrappers
        return old.flatten_sharded_optim_state_dict(sharded_optim_state_dict, model, optim)
    return _loadable(sharded_optim_state_dict, model, _state_groups(model, None, optim))


def rekey_optim_state_dict(
    optim_state_dict: dict[str, Any],
    optim_state_key_type: Any,
    model: nn.Module,
    optim_input: Any = None,
    optim: Any = None,
) -> dict[str, Any]:
    """`FSDP.rekey_optim_state_dict(...)`: from positions to names or back, for a sharded and for a plain model."""
    old = fsdp1_class(model)  # needed for: old_wrappers
    if old is not None:  # needed for: old_wrappers
        return old.rekey_optim_state_dict(optim_state_dict, optim_state_key_type, model, optim_input, optim)
    positions = _positions(model, list(chain(*_state_groups(model, optim_input, optim))))
    by_name = optim_state_key_type.name == "PARAM_NAME"
    keys = {position: name for name, position in reversed(positions.items())} if by_name else positions
    if all(isinstance(key, str if by_name else int) for key in optim_state_dict["state"]):
        return optim_state_dict
    groups = [
        {**copy.deepcopy(saved), "params": sorted(keys[key] for key in saved["params"])}  # pyright: ignore
        for saved in optim_state_dict["param_groups"]
    ]
    return {"state": {keys[key]: value for key, value in optim_state_dict["state"].items()}, "param_groups": groups}


def _state_groups(model: nn.Module, optim_input: Any, optim: Any) -> list[list[torch.Tensor]]:
    """The parameters of an optimizer, group by group: `optim`'s, else those that it was made from, else the model's. Of a
    model that is held whole, the whole ones."""
    given = list(resharded(model).parameters() if optim_input is None else optim_input)
    if optim is None and not isinstance(given[0], dict):
        return [given]
    groups = given if optim is None else optim.param_groups
    return [[getattr(p, "_held_whole", p) for p in group["params"]] for group in groups]


def _names(model: nn.Module) -> dict[str, torch.Tensor]:
    """FSDP1's names of all parameters; a shared one has several, the first of them is what state is saved under."""
    named = nn.Module.named_parameters(resharded(model), remove_duplicate=False)
    return {name.replace("_checkpoint_wrapped_module.", ""): parameter for name, parameter in named}


def _positions(model: nn.Module, parameters: list[torch.Tensor]) -> dict[str, int]:
    positions = {parameter: position for position, parameter in enumerate(parameters)}
    return {name: positions[parameter] for name, parameter in _names(model).items() if parameter in positions}


def full_by_name(
    model: nn.Module, optim: Any, state: dict[str, Any], rank0_only: bool, device: str | None, group: Any
) -> dict[str, Any]:
    """An optimizer's state dict with whole tensors and names for ids; {} on all ranks but the first with `rank0_only`."""
    if rank0_only and dist.is_initialized() and dist.get_rank(group) != 0:
        for entry in state["state"].values():
            whole(entry)  # the other ranks need its part
        return {}
    named = _by_name(model, optim, state)
    snapshot = map_tensors(lambda tensor: tensor if isinstance(tensor, DTensor) else tensor.clone(), named["state"])
    return {**named, "state": whole(snapshot, device)}


def shards_by_name(model: nn.Module, optim: Any, state: dict[str, Any], device: str | None) -> dict[str, Any]:
    """An optimizer's state dict with copies of the shards and names for ids."""
    named = _by_name(model, optim, state)
    entries = shard_entries(named["state"], _names(model))
    return {**named, "state": map_tensors(lambda tensor: tensor.clone().to(device), entries)}


def _by_name(model: nn.Module, optim: Any, state: dict[str, Any]) -> dict[str, Any]:
    names: dict[torch.Tensor, str] = {}
    for name, parameter in _names(model).items():
        names.setdefault(parameter, name)
    ids = chain.from_iterable(group["params"] for group in state["param_groups"])
    name_of = {key: names[parameter] for key, parameter in zip(ids, chain(*_state_groups(model, None, optim)), strict=True)}
    if any(isinstance(key, str) for key in name_of):  # an optimizer that is keyed by name itself, in an order of its own
        name_of = {key: key for key in name_of}
    groups = [
        {**copy.deepcopy(group), "params": [name_of[key] for key in group["params"]]} for group in state["param_groups"]
    ]
    return {"state": {name_of.get(key, key): value for key, value in state["state"].items()}, "param_groups": groups}


def _loadable(
    state: dict[str, Any],
    model: nn.Module,
    groups: list[list[torch.Tensor]],
    from_rank0: bool = False,
    group: Any = None,
    keep_names: bool = False,
) -> dict[str, Any]:
    """A state dict by name as one by position, sharded; `keep_names` for optimizers that are keyed by name themselves."""
    if from_rank0:
        box = [map_tensors(lambda tensor: tensor.to("meta") if tensor.dim() else tensor.cpu(), state)]
        dist.broadcast_object_list(box, src=0, group=group)
        state = state if dist.get_rank(group) == 0 else box[0]
    parameters = list(chain(*groups))
    place = partial(_scatter, group=group) if from_rank0 else shard_like
    entries = shard_entries(state["state"], {**dict(enumerate(parameters)), **_names(model)}, place)
    positions: dict[Any, Any] = {} if keep_names else _positions(model, parameters)
    result: dict[str, Any] = {"state": {positions.get(key, key): entry for key, entry in entries.items()}}
    if "param_groups" in state:
        saved = state["param_groups"]
        keys = [sorted({key if keep_names or type(key) is int else positions[key] for key in each["params"]}) for each in saved]
        if len(keys) == len(groups) and sorted(chain(*keys)) == list(range(len(parameters))):
            # Parameters of FSDP1 were flat: groups that were made by shape, or by place, held others of them.
            places = iter(range(len(parameters)))
            keys = [list(islice(places, len(own))) for own in groups]
        result["param_groups"] = [{**copy.deepcopy(each), "params": own} for each, own in zip(saved, keys, strict=True)]
    return result


def _scatter(value: torch.Tensor, parameter: torch.Tensor, group: Any) -> torch.Tensor:
    """`value` of rank 0, which is a meta tensor elsewhere: cut as `parameter` is sharded, or as it is."""
    if value.dim() == 0:
        return value
    value = torch.empty_like(value, device=parameter.device) if value.is_meta else value.detach().to(parameter.device)
    if isinstance(parameter, DTensor) and value.shape == parameter.shape:
        return distribute_tensor(value, parameter.device_mesh, parameter.placements)
    dist.broadcast(value, src=0, group=group)
    return value
