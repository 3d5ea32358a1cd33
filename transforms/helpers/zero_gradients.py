"""zero_grad of models: the gradients lie on the shards, which are not always what is registered."""

from typing import Any

from torch import nn
from torch.distributed.fsdp import FSDPModule


def zero_gradients(model: Any, *args: Any, **kwargs: Any) -> None:
    """`model.zero_grad(...)`, of its shards too: behind a forward, gathered parameters are registered in their place.

    What a graph has saved stays, so that a backward may follow. Of anything else, its own `zero_grad` is called.
    """
    model.zero_grad(*args, **kwargs)
    set_to_none = kwargs.get("set_to_none", args[0] if args else True)
    units: list[Any] = [m for m in model.modules() if isinstance(m, FSDPModule)] if isinstance(model, nn.Module) else []
    for group in (unit._get_fsdp_state()._fsdp_param_group for unit in units):
        for held in group.fsdp_params if group is not None else ():
            held.unsharded_accumulated_grad = None
            for parameter in (held.sharded_param, getattr(held, "_unsharded_param", None)):
                if parameter is not None and parameter.grad is not None:
                    parameter.grad = None if set_to_none else parameter.grad.detach().zero_()
