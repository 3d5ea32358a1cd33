"""What was sharded with fully_shard, in place of FSDP1's and DDP's ways to look inside a wrapper."""

import functools
from collections.abc import Callable
from typing import Any

from torch import nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor


def sharded_module(model: Any) -> Any:
    """`model` if fully_shard was applied to it, or the model that torch.compile made it from; None for anything else."""
    for candidate in (model, vars(model).get("_modules", {}).get("_orig_mod") if isinstance(model, nn.Module) else None):
        if isinstance(candidate, FSDPModule):
            return candidate
    return None


def sharded_behind(model: Any, member: str) -> Any:
    """The sharded model that `model.member` was the wrapper's of: `model`, or what it hands on to what it lacks itself, as
    compiled models and proxies do; None if there is none.
    """
    sharded = sharded_module(model)
    if sharded is not None or hasattr(model, member):
        return sharded
    method = getattr(model, "set_requires_gradient_sync", None)  # which only sharded models have
    owner = getattr(method, "__self__", None)
    return owner if isinstance(owner, FSDPModule) else None


def has_member(model: Any, member: str) -> bool:
    """`hasattr(model, member)`, and yes of a sharded model, as of the wrapper that it was in."""
    return hasattr(model, member) or sharded_behind(model, member) is not None


def wrapper_method(model: Any, name: str, function: Callable[..., Any], *default: Any) -> Any:
    """`getattr(model, name, *default)`, of a method that the wrapper had: `function` takes its place for a sharded model."""
    return getattr(model, name, *default) if sharded_behind(model, name) is None else functools.partial(function, model)


def units(module: nn.Module, root_only: bool = False) -> list[Any]:
    """The modules that fully_shard was applied to, `module` itself included: `FSDP.fsdp_modules(module, root_only)`.

    With `root_only`, those alone that lie in no other unit below `module`. FSDP1's own units are found as before.
    """
    old: list[Any] = []
    fsdp1 = fsdp1_class(module)  # needed for: old_wrappers
    if fsdp1 is not None:  # needed for: old_wrappers
        old = fsdp1.fsdp_modules(module, root_only)
    found = [m for m in module.modules() if isinstance(m, FSDPModule)]
    inside = {child for unit in found for child in unit.modules() if child is not unit} if root_only else set()
    return old + [unit for unit in found if unit not in inside]


def is_root(module: Any) -> bool:
    """`module.check_is_root()`: whether a unit lies in no other. As there, the first that is asked finds out for its own."""
    if not isinstance(module, FSDPModule):
        return module.check_is_root()
    state = module._get_fsdp_state()
    if state._is_root is None:
        state._lazy_init()
    return bool(state._is_root)


def fsdp1_class(module: nn.Module) -> Any:
    """FSDP1's class if `module` is or holds such a wrapper, else None; found by name, since a later torch may not have it."""
    classes = {cls for m in module.modules() for cls in type(m).__mro__ if cls.__module__.startswith("torch.")}
    return next((cls for cls in classes if cls.__name__ == "FullyShardedDataParallel"), None)


def unwrap(model: Any, times: int = 1) -> Any:
    """The model itself if it is sharded, which happens in place; else `model.module`, as before. Twice: one of the two was the
    wrapper's.

    A sharded model that has a `module` of its own is taken for the wrapper's content only if the wrap recorded it.
    """
    inner = sharded_module(model)
    if inner is not None and (getattr(inner, "_wrapped_like", None) or not hasattr(inner, "module")):
        return inner if times == 1 else inner.module
    return model.module if times == 1 else unwrap(model.module)


def is_sharded(thing: Any) -> bool:
    """Whether `thing` is a module that was sharded with fully_shard, or holds such modules or parameters."""
    if not isinstance(thing, nn.Module):
        return False
    if fsdp1_class(thing) is not None:  # needed for: old_wrappers
        return False
    return any(isinstance(m, FSDPModule) for m in thing.modules()) or any(isinstance(p, DTensor) for p in thing.parameters())
