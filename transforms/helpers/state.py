"""State dicts of models, and of things of unknown nature: whole tensors, under the keys of before."""

import functools
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import DTensor

from .ddp_keys import with_ddp_keys, without_ddp_keys
from .optimizer_state import load_optimizer_state
from .units import fsdp1_class, is_sharded
from .whole import map_tensors, shard_like, whole


def state_of(thing: Any, /, *args: Any, **kwargs: Any) -> Any:
    """`thing.state_dict(...)` with whole tensors, for a model, an optimizer or anything else. All ranks call it.

    Of a sharded model what `set_state_dict_type` chose: sharded tensors, offload_to_cpu, rank0_only. Any other model
    answers by itself. Keys are those of `ddp.module.state_dict()`, without `module.`.
    """
    state = thing.state_dict(*args, **kwargs)
    if not is_sharded(thing):
        return state if isinstance(thing, nn.Module) else whole(state)
    if not isinstance(state, dict):
        return whole(state)
    kinds = (m._state_dict_settings for m in thing.modules() if hasattr(m, "_state_dict_settings"))  # needed for: state_dict_type
    if (settings := next(kinds, None)) is not None:  # needed for: state_dict_type
        return _of_kind(state, settings)
    ties = getattr(thing, "_wrapped_like", None) == "ddp"  # FSDP1 gathered each name by itself
    state.update(whole(state, keep_ties=ties))  # in place: a `destination` may be the caller's
    return state


def _of_kind(state: dict[str, Any], settings: Any) -> dict[str, Any]:
    """`state` changed, in place, to what FSDP1's settings of a model ask for."""
    config = settings.state_dict_config
    device = "cpu" if getattr(config, "offload_to_cpu", False) else None
    if settings.state_dict_type.name != "FULL_STATE_DICT":
        state.update(map_tensors(lambda tensor: tensor.detach().clone().to(device), state))
    elif getattr(config, "rank0_only", False) and not holds_first_shards(state):
        for value in state.values():
            whole(value)  # the other ranks need its part
        state.clear()
    else:
        state.update(whole(state, device, keep_ties=False))
    return state


def model_state(model: Any, /, *args: Any, **kwargs: Any) -> Any:
    """`model.state_dict(...)` as `state_of` gives it; a model that the wrap recorded as DDP's has `module.` in its keys."""
    state = state_of(model, *args, **kwargs)
    if is_sharded(model) and isinstance(state, dict):  # needed for: ddp_keys
        with_ddp_keys(state, model, kwargs.get("prefix") or (args[1] if len(args) > 1 else ""))
    return state


def as_method(thing: Any, name: str, function: Callable[..., Any]) -> Any:
    """`thing.name` as a value: a function that calls `function(thing, ...)`, such as `state_of` for `thing.state_dict`.

    Where the attribute has been replaced since, the replacement may call this: then it is the method of before. An attribute
    that is no method comes as it is.
    """
    method = getattr(thing, name, None)  # a sharded model lacks what its wrapper had
    if method is not None and not callable(method):
        return method

    def call(*args: Any, **kwargs: Any) -> Any:
        if method is None or getattr(thing, name) == method:
            return function(thing, *args, **kwargs)
        return whole(method(*args, **kwargs))

    return call if method is None else functools.wraps(method)(call)


def load_state(thing: Any, /, *args: Any, **kwargs: Any) -> Any:
    """`thing.load_state_dict(...)`, where the state may hold whole tensors for sharded ones.

    What is neither model nor optimizer, such as an average of a sharded model's weights, gets shards for the tensors
    that its own state_dict() has as shards in the same places, or its attributes, or the entries of these.
    """
    owner = getattr(thing.load_state_dict, "__self__", thing)  # of an object that hands on what it has not itself
    if isinstance(owner, nn.Module):
        return load_model_state(owner, *args, **kwargs)
    if isinstance(owner, torch.optim.Optimizer) or hasattr(owner, "param_groups"):
        return load_optimizer_state(owner, *args, **kwargs)
    held = _held_by(thing)  # needed for: other_states
    args = tuple(shard_as_held(arg, held) for arg in args)  # needed for: other_states
    kwargs = {name: shard_as_held(arg, held) for name, arg in kwargs.items()}  # needed for: other_states
    return thing.load_state_dict(*args, **kwargs)


def _held_by(thing: Any) -> dict[str, Any]:
    """What `thing` has under the names of its attributes, of entries of these, and of its own state dict."""
    held = dict(getattr(thing, "__dict__", {}))
    for entries in [entries for entries in held.values() if isinstance(entries, dict)]:
        held = {**entries, **held}
    try:
        state = thing.state_dict()
    except Exception:  # one that needs arguments, or that nothing can be read from yet
        return held
    return {**held, **state} if isinstance(state, dict) else held


def shard_as_held(value: Any, held: Any) -> Any:
    """`value` with whole tensors sharded where `held` has shards in the same places of its dicts and lists."""
    if isinstance(value, torch.Tensor):
        return shard_like(value, held) if isinstance(held, DTensor) else value
    if isinstance(value, dict) and isinstance(held, dict):
        items = {key: shard_as_held(item, held.get(key)) for key, item in value.items()}
        return items if any(items[key] is not item for key, item in value.items()) else value
    if type(value) in (list, tuple) and isinstance(held, (list, tuple)):
        beside = [*held, *[None] * len(value)]
        items = [shard_as_held(item, other) for item, other in zip(value, beside, strict=False)]
        return type(value)(items) if any(new is not old for new, old in zip(items, value, strict=True)) else value
    return value


def load_model_state(model: Any, /, *args: Any, **kwargs: Any) -> Any:
    """`model.load_state_dict(state, ...)`; a sharded model takes whole and sharded tensors alike.

    Each rank cuts its part out of what it was given, without communication. Keys may have DDP's `module.` or not.
    Missing and unexpected keys, `strict` and `assign` are as ever; what is passed is not changed.
    """
    if not isinstance(model, nn.Module):
        return model.load_state_dict(*args, **kwargs)
    if fsdp1_class(model) is not None:  # needed for: old_wrappers
        return model.load_state_dict(*args, **kwargs)
    if is_sharded(model):  # needed for: ddp_keys
        args = tuple(without_ddp_keys(arg, model) for arg in args)
        kwargs = {name: without_ddp_keys(arg, model) for name, arg in kwargs.items()}
    parts = [part for part in model.modules() if not isinstance(part, torch.jit.ScriptModule)]
    hooks = [part.register_load_state_dict_pre_hook(_shard_entries) for part in parts]
    try:
        return model.load_state_dict(*args, **kwargs)
    finally:
        for hook in hooks:
            hook.remove()


def _shard_entries(module: nn.Module, state: dict[str, Any], prefix: str, *_: object) -> None:
    for name, live in [*module._parameters.items(), *module._buffers.items()]:
        value = state.get(prefix + name)
        if isinstance(live, DTensor) and isinstance(value, torch.Tensor):
            state[prefix + name] = shard_like(value, live)



def holds_first_shards(state: dict[str, Any]) -> bool:
    """Whether this rank holds the first part of what is sharded: where FSDP1's rank0_only state dicts are."""
    sharded = next((value for value in state.values() if isinstance(value, DTensor)), None)
    if sharded is None:
        return not dist.is_initialized() or dist.get_rank() == 0
    places = zip(sharded.device_mesh.get_coordinate() or (), sharded.placements, strict=False)
    return all(place == 0 for place, placement in places if not placement.is_replicate())
