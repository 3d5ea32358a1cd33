"""What held a model's parameters before sharding holds the sharded ones afterwards."""

import gc
import warnings
import weakref
from typing import Any

import torch
from torch import nn
from torch.distributed.tensor import DTensor, Replicate


def parameter_slots(module: nn.Module) -> list[tuple[nn.Module, str, weakref.ref[nn.Parameter], dict[str, Any]]]:
    """Every place of a parameter in `module`, to be taken before sharding: owner, name, the parameter, its attributes.

    The references are weak, so that parameters which only the module held are gone after sharding.
    """
    return [
        (owner, name, weakref.ref(parameter), _attributes_of(parameter))
        for owner in module.modules()
        for name, parameter in owner._parameters.items()
        if parameter is not None
    ]


def _attributes_of(parameter: nn.Parameter) -> dict[str, Any]:
    attributes = dict(vars(parameter))
    for name in ("_backward_hooks", "_post_accumulate_grad_hooks"):  # needed for: parameter_hooks
        if hooks := getattr(parameter, name):
            attributes[name] = hooks
    return attributes


def rebind_parameters(slots: list[tuple[nn.Module, str, weakref.ref[nn.Parameter], dict[str, Any]]]) -> None:
    """Give whatever still holds a parameter from before sharding the parameter that is in its place now.

    fully_shard replaces every parameter; an optimizer that was built before it would train nothing, and say nothing.
    Optimizers (with their state), lists and dictionaries are edited in place, so schedulers and gradient scalers that
    hold them need nothing. Attributes and hooks that were set on a parameter move to the new one.
    Raises TypeError for optimizer state that cannot be sharded, and warns of holders that cannot be edited.
    """
    swap: dict[int, tuple[nn.Parameter, nn.Parameter]] = {}
    for owner, name, reference, attributes in slots:
        old, new = reference(), owner._parameters[name]
        if new is None or old is new:
            continue
        for key in attributes.keys() - vars(new).keys():
            if not key.startswith("_fsdp"):
                setattr(new, key, attributes[key])
        if old is not None:
            swap[id(old)] = old, new
    if not swap:
        return
    for optimizer in [held for held in gc.get_objects() if issubclass(type(held), torch.optim.Optimizer)]:
        _rebind_optimizer(optimizer, swap)
    _rebind_containers(swap)


def _rebind_optimizer(optimizer: torch.optim.Optimizer, swap: dict[int, tuple[nn.Parameter, nn.Parameter]]) -> None:
    """Point the groups and the state of `optimizer` at the new parameters."""
    held = {id(p) for group in optimizer.param_groups for p in group["params"]}
    if held.isdisjoint(swap):
        return
    if type(optimizer).__name__ == "ZeroRedundancyOptimizer":  # needed for: zero_redundancy
        raise TypeError("ZeroRedundancyOptimizer splits parameters by rank, as fully_shard does: build its inner optimizer")
    for group in optimizer.param_groups:
        group["params"][:] = [swap[id(p)][1] if id(p) in swap else p for p in group["params"]]
    held_state = list(optimizer.state.items())
    optimizer.state.clear()  # filled again in the same order, which state dicts show
    for old, state in held_state:
        new = swap[id(old)][1] if id(old) in swap else old
        optimizer.state[new] = state if new is old else {key: _shard_state(value, old, new) for key, value in state.items()}


def _shard_state(value: Any, old: torch.Tensor, new: torch.Tensor) -> Any:
    """This rank's part of a piece of optimizer state, sharded as its parameter is; step counts as they are."""
    if not isinstance(value, torch.Tensor) or value.dim() == 0 or not isinstance(new, DTensor):
        return value
    if value.shape != old.shape:
        raise TypeError(
            f"optimizer state of shape {tuple(value.shape)} cannot be sharded like its parameter of shape {tuple(old.shape)}: "
            "build the optimizer after sharding and load its state there"
        )
    replicated = DTensor.from_local(value, new.device_mesh, [Replicate()] * new.device_mesh.ndim, run_check=False)
    return replicated.redistribute(placements=new.placements).to(new.device)


def _rebind_containers(swap: dict[int, tuple[nn.Parameter, nn.Parameter]]) -> None:
    """Edit the lists and dictionaries that hold old parameters; warn of the other containers."""
    fixed: list[str] = []
    for holder in gc.get_referrers(*[old for old, _ in swap.values()]):
        if type(holder) is list:
            holder[:] = [swap[id(item)][1] if id(item) in swap else item for item in holder]
        elif isinstance(values := holder if isinstance(holder, dict) else getattr(holder, "__dict__", None), dict):
            for key, value in list(values.items()):
                if id(value) in swap:
                    values[key] = swap[id(value)][1]
                if id(key) in swap:
                    values[swap[id(key)][1]] = values.pop(key)
        elif isinstance(holder, (tuple, set, frozenset)) and not any(holder is pair for pair in swap.values()):
            fixed.append(type(holder).__name__)
    if fixed:
        warnings.warn(f"a {fixed[0]} still holds parameters from before sharding: make it anew from the model", stacklevel=2)
