"""torch.func.functional_call on models that may be sharded."""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn

from .ddp_keys import own_key
from .sharding_hooks import without_sharding_hooks
from .units import is_sharded
from .whole import whole


def call_with_weights(
    module: nn.Module, parameter_and_buffer_dicts: Any, args: Any = None, kwargs: Any = None, **options: Any
) -> Any:
    """`torch.func.functional_call`, with whole tensors in the place of a sharded model's parameters.

    All ranks call it where some parameters are left to the model. By itself fully_shard would put its own parameters in the
    place of those given, and its shards into the dictionary.
    """
    if not is_sharded(module):
        return torch.func.functional_call(module, parameter_and_buffer_dicts, args, kwargs, **options)
    several = isinstance(parameter_and_buffer_dicts, Sequence)
    given: dict[str, torch.Tensor] = {}
    for tensors in parameter_and_buffer_dicts if several else [parameter_and_buffer_dicts]:
        given |= {own_key(module, name): tensor for name, tensor in tensors.items()}
    own = {name: p for name, p in module.named_parameters() if name not in given}
    with without_sharding_hooks(module):
        return torch.func.functional_call(module, whole(own | given), args, kwargs, **options)


def on_whole_tensors(function: Callable[..., Any]) -> Callable[..., Any]:
    """`function`, called with whole tensors in the place of sharded ones. All ranks call it."""

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        return function(*whole(args), **whole(kwargs))

    return call
