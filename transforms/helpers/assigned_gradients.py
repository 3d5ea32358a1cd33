"""Gradients that a rank has assigned by itself: its own until a collective makes them one, as with parameters that are whole."""

from typing import Any

import torch
from torch.distributed.tensor import DTensor

from .parameters import write_shard
from .tensors import tensors_in
from .whole import map_tensors


def note_assigned(parameter: Any, value: Any) -> None:
    """`parameter.grad = value` has been called with a whole value: the shard has its part, the program means all."""
    if isinstance(value, torch.Tensor) and not isinstance(value, DTensor) and isinstance(parameter.grad, DTensor):
        _note(parameter.grad, value)


def assigned(tensor: Any) -> Any:
    """What this rank assigned as a gradient, where nothing but the program has changed it since; else the tensor itself."""
    value, version = getattr(tensor, "_assigned", (tensor, None))
    return value if version is None or version == tensor._local_tensor._version else tensor


def holds_assigned(*values: Any) -> bool:
    """Whether any of these is a gradient that this rank assigned."""
    return any(assigned(tensor) is not tensor for tensor in tensors_in(values))


def compute_with_assigned(function: Any, arguments: Any, keywords: Any, target: Any) -> Any:
    """What a function gives for the gradients as they were assigned; of those in its `target`, which it writes, shards follow."""
    result = function(*map_tensors(assigned, arguments), **map_tensors(assigned, keywords))
    found: list[Any] = list(tensors_in(target))
    for tensor in found:
        value = assigned(tensor)
        if value is not tensor:
            write_shard(tensor, value)
            follow_assigned(tensor, value)
    return result if target is None else target


def follow_assigned(tensor: Any, value: torch.Tensor) -> None:
    """The program has changed `value`, and the shard has its part: where it was assigned, it stays what the program finds."""
    if getattr(tensor, "_assigned", (None,))[0] is value:
        _note(tensor, value)


def share_assigned(tensor: Any, alias: Any) -> None:
    """`alias` is `tensor.data`: what was assigned to the one is in the other."""
    value = assigned(tensor)
    if value is not tensor and isinstance(alias, DTensor):
        _note(alias, value)


def _note(tensor: Any, value: torch.Tensor) -> None:
    tensor._assigned = value, tensor._local_tensor._version
