"""State dicts whose tensors follow the weights."""

from typing import Any

import torch
from torch import nn
from torch.distributed.tensor import DTensor
from torch.optim.optimizer import register_optimizer_step_post_hook

from .state import state_of
from .units import is_sharded
from .whole import whole


def live_state(model: Any, /, *args: Any, **kwargs: Any) -> Any:
    """`state_of(model, ...)` whose tensors follow the weights, as those of DDP's state dict did.

    For code that keeps them, such as a list of weights that an average is computed from at each step. Every step of an
    optimizer, and every load, brings them up to date: all ranks make these together.
    """
    state = state_of(model, *args, **kwargs)
    if not is_sharded(model) or not isinstance(state, dict):
        return state
    all_names = nn.Module.named_parameters(model, remove_duplicate=False)  # a class may have its own, without the argument
    names = [name for name, p in all_names if isinstance(p, DTensor) and name in state]
    kept = [state[name] for name in names]

    @torch.no_grad()
    def follow(*_: Any) -> None:
        for name, tensor in zip(names, kept, strict=True):
            tensor.copy_(whole(model.get_parameter(name).detach()))

    register_optimizer_step_post_hook(follow)
    model.register_load_state_dict_post_hook(follow)
    return state
