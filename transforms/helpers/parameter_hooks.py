"""Tensor hooks of parameters that are sharded."""

import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor

from .parameters import write_shard


def keep_parameter_hooks(module: Any) -> None:
    """Let `p.register_hook(…)` on sharded parameters of `module` fire, on each rank's own gradient as under DDP.

    Autograd sees the gathered parameters, on which fully_shard puts no hooks; they run those of the sharded ones.
    """
    sharded: list[Any] = [unit for unit in module.modules() if isinstance(unit, FSDPModule)]
    for unit in sharded:
        nested = {inner for other in unit.modules() if other in sharded and other is not unit for inner in other.modules()}
        places = [
            (owner, name, parameter)
            for owner in unit.modules()
            if owner not in nested
            for name, parameter in owner._parameters.items()
            if isinstance(parameter, DTensor)
        ]

        group = unit._get_fsdp_state()._fsdp_param_group
        if group is not None:
            group.wait_for_unshard = torch.compiler.disable(_sharing(group.wait_for_unshard, places))


def _sharing(gather: Callable[[], None], places: list[tuple[nn.Module, str, DTensor]]) -> Callable[[], None]:
    """Whoever gathers: a forward, a part that is called by itself, a method."""

    def gather_and_share() -> None:
        gather()
        for owner, name, parameter in places:
            gathered: Any = owner._parameters[name]
            is_new = parameter._backward_hooks and not hasattr(gathered, "_runs_hooks")
            if gathered is not parameter and is_new and gathered.requires_grad:
                gathered._runs_hooks = gathered.register_hook(_running_hooks(parameter, weakref.ref(gathered)))

    return gather_and_share


def _running_hooks(parameter: Any, whole_one: weakref.ref[Any]) -> Callable[[torch.Tensor], torch.Tensor | None]:
    """The hooks of a sharded parameter, for which it is whole: one rank alone may have them.

    By a weak reference: what holds a gathered parameter itself may be given the sharded one.
    """

    def run(gradient: torch.Tensor) -> torch.Tensor | None:
        gathered: Any = whole_one()
        found, version, is_held = gradient, gathered._version, hasattr(parameter, "_held_whole")
        hooks = list((parameter._backward_hooks or {}).values())  # before it stands for what runs this
        DTensor._models_held = getattr(DTensor, "_models_held", 0) + 1  # pyright: ignore[reportAttributeAccessIssue]
        if not is_held:
            parameter._held_whole = gathered
        try:
            for hook in hooks:
                changed = hook(found)
                found = found if changed is None else changed
        finally:
            DTensor._models_held -= 1  # pyright: ignore[reportAttributeAccessIssue]
            if not is_held:
                vars(parameter).pop("_held_whole", None)
        if gathered._version != version:
            write_shard(parameter.detach(), gathered.detach())
        return None if found is gradient else found

    return run
