"""Tensor hooks of parameters that are sharded."""

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor


def keep_parameter_hooks(module: Any) -> None:
    """Let `p.register_hook(…)` on sharded parameters of `module` fire, on each rank's own gradient as under DDP.

    Autograd sees the gathered parameters, on which fully_shard puts no hooks; they share those of the sharded ones.
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
            if gathered is not parameter and gathered._backward_hooks is not parameter._backward_hooks:
                gathered._backward_hooks = parameter._backward_hooks

    return gather_and_share
