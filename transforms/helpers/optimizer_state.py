"""State dicts of optimizers, in their own format: integer ids, whole tensors."""

from collections.abc import Callable
from functools import partial
from itertools import chain
from typing import Any

import torch
from torch.distributed.tensor import DTensor

from .whole import map_tensors, shard_like, whole


def optimizer_state(optimizer: Any, /, *args: Any, **kwargs: Any) -> Any:
    """`optimizer.state_dict(...)` with whole tensors, in the optimizer's own format; all ranks call it."""
    return whole(optimizer.state_dict(*args, **kwargs))


def load_optimizer_state(optimizer: Any, /, *args: Any, **kwargs: Any) -> Any:
    """`optimizer.load_state_dict(...)`; state of sharded parameters may be whole, as DDP and plain training save it.

    Each rank cuts its part out of what it was given, without communication; parameters are matched by position, as ever.
    Step counters and other tensors of another shape than their parameter's are copied. What is passed is not changed.
    """
    parameters = list(chain.from_iterable(group["params"] for group in getattr(optimizer, "param_groups", ())))
    if any(isinstance(p, DTensor) for p in parameters) and not getattr(optimizer, "_held_whole", False):
        args = tuple(shard_by_position(arg, parameters) for arg in args)
        kwargs = {name: shard_by_position(value, parameters) for name, value in kwargs.items()}
    return optimizer.load_state_dict(*args, **kwargs)


def shard_by_position(state: Any, parameters: list[torch.Tensor]) -> Any:
    """A copy of an optimizer's state dict, sharded like its `parameters`; anything else is returned as it is."""
    if not isinstance(state, dict) or "state" not in state or "param_groups" not in state:
        return state
    ids = chain.from_iterable(group["params"] for group in state["param_groups"])
    return {**state, "state": shard_entries(state["state"], dict(zip(ids, parameters, strict=False)))}


def consolidate_state_dict(optimizer: Any, /, *args: Any, **kwargs: Any) -> None:
    """`optimizer.consolidate_state_dict(...)` of ZeroRedundancyOptimizer; other optimizers have nothing to consolidate."""
    if hasattr(optimizer, "consolidate_state_dict"):
        optimizer.consolidate_state_dict(*args, **kwargs)


def shard_entries(
    entries: dict[Any, Any], parameters: dict[Any, torch.Tensor], place: Callable[..., torch.Tensor] = shard_like
) -> dict[Any, Any]:
    """The "state" of an optimizer's state dict, each entry sharded like the parameter of the same key."""

    def shard(value: torch.Tensor, parameter: torch.Tensor) -> torch.Tensor:
        part = place(value, parameter)
        # FSDP1's files have one step counter for many parameters, which must not be advanced by each of them.
        return value.clone() if part is value else part

    return {
        key: map_tensors(partial(shard, parameter=parameters[key]), entry) if key in parameters else entry
        for key, entry in entries.items()
    }
