"""zero_grad of models: the gradients lie on the shards, which are not always what is registered."""

import functools
from typing import Any

from torch import nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor


def reset_shards_in_zero_grad() -> None:
    """Let `zero_grad` of modules reset the gradients of sharded parameters too, from here on: behind a forward without
    backward, gathered ones are registered in their place. What waits to be reduced is dropped; what a graph has saved stays.
    """
    modules: Any = nn.Module
    of_modules = modules.zero_grad
    if hasattr(of_modules, "_of_shards"):  # this file may be there in several copies
        return

    @functools.wraps(of_modules)
    def zero_grad(module: nn.Module, set_to_none: bool = True) -> None:
        of_modules(module, set_to_none)
        if getattr(DTensor, "_models_held", 0):  # needed for: each_rank
            return  # one rank alone may be here: the shards of others would keep theirs
        units: list[Any] = [child for child in module.modules() if isinstance(child, FSDPModule)]
        for group in (unit._get_fsdp_state()._fsdp_param_group for unit in units):
            for held in group.fsdp_params if group is not None else ():
                held.unsharded_accumulated_grad = None
                for parameter in (held.sharded_param, getattr(held, "_unsharded_param", None)):
                    if parameter is not None and parameter.grad is not None:
                        parameter.grad = None if set_to_none else parameter.grad.detach().zero_()

    vars(zero_grad)["_of_shards"] = True
    modules.zero_grad = zero_grad
