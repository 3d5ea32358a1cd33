"""Sharded parameters in computations that take each rank's own part, as FSDP1 showed it."""

from typing import Any

import torch
from torch.distributed.tensor import DTensor

from .sharded_math import answer_with, is_called_for_shards, mark_as_part
from .whole import map_tensors

OF_ALL = ("__set__", "size", "dim", "stride", "backward", "register_hook", "requires_grad_", "__deepcopy__", "__reduce_ex__")
"""What is asked of a sharded tensor, or done to it, as of the whole one."""


def compute_with_parts(module: Any) -> Any:
    """Let the program compute with sharded tensors as it did with those of FSDP1: each rank with its own part, of which only
    `shape`, `size()`, `stride()` and `dim()` are the whole tensor's.

    What is made of a part, element by element, is sharded as it is; everything else is plain and each rank's own, such as
    a sum, a norm or the number of elements. What is written in place is written into the part. Returns `module`.
    """
    for parameter in module.parameters():  # needed for: both_math
        mark_as_part(parameter)
    answer_with(_compute_with_parts, "parts")
    return module


def _compute_with_parts(function: Any, arguments: Any, keywords: Any, caller: Any) -> Any:
    name = function.__name__
    if name in OF_ALL or is_called_for_shards(caller):
        return function(*arguments, **keywords)
    sharded: list[DTensor] = []
    parts: list[torch.Tensor] = []
    given: list[int] = []

    def take(tensor: torch.Tensor) -> torch.Tensor:
        if not isinstance(tensor, DTensor):
            return tensor
        sharded.append(tensor)
        parts.append(tensor.to_local())
        return parts[-1]

    def give(tensor: torch.Tensor) -> torch.Tensor:
        for number, part in enumerate(parts):
            if tensor is part:
                return sharded[number]
        alike = [number for number, part in enumerate(parts) if part.ndim and _layout(part) == _layout(tensor)]
        if not alike:
            return tensor
        given.append(min(alike, key=lambda number: (number in given, number)))  # lists come out in the order of the first
        return _sharded_as(sharded[given[-1]], tensor)

    return map_tensors(give, function(*map_tensors(take, arguments), **map_tensors(take, keywords)))


def _sharded_as(like: DTensor, part: torch.Tensor) -> DTensor:
    layout: Any = like.device_mesh, like.placements
    return DTensor.from_local(part, *layout, run_check=False, shape=like.shape, stride=like.stride())


def _layout(tensor: torch.Tensor) -> Any:
    return tensor.shape, tensor.device
