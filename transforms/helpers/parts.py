"""Sharded parameters in computations that take each rank's own part, as FSDP1 showed it."""

from typing import Any, cast

import torch
from torch.distributed.tensor import DTensor

from .sharded_math import answer_with, is_called_for_shards, mark_as_part, writes_in_place
from .whole import map_tensors, shard_like

OF_ALL = frozenset(
    {"size", "dim", "stride", "register_hook", "register_post_accumulate_grad_hook", "requires_grad_", "retain_grad",
     "share_memory_", "__delete__", "__deepcopy__", "__reduce_ex__"}
)  # fmt: skip
"""What is asked of a sharded tensor, or done to it, as of the whole one."""
OF_ANY_SHAPE = frozenset(
    {"cat", "concat", "concatenate", "stack", "hstack", "vstack", "__getitem__", "__setitem__", "index_select", "gather", "take",
     "view_as", "reshape_as", "type_as", "to"}
)  # fmt: skip
"""What joins tensors, picks elements or asks for a form, and so pairs no element of a part with one that is not beside it."""


def compute_with_parts(module: Any) -> Any:
    """Let the program compute with sharded tensors as it did with those of FSDP1: each rank with its own part, of which only
    `shape`, `size()`, `stride()` and `dim()` are the whole tensor's.

    What is made of a part, element by element, is sharded as it is; everything else is plain and each rank's own, such as
    a sum, a norm or the number of elements. What is written in place, or set as `data` or `grad`, is written into the part.
    Of a plain tensor that is made like the whole one, as `torch.rand(p.shape)` is, they take the part's elements; with one
    of any other shape they raise as FSDP2 does: nobody knows which of its elements belong to the part. Returns `module`.
    """
    for parameter in module.parameters():  # needed for: both_math
        mark_as_part(parameter)
    answer_with(_compute_with_parts, "parts")
    return module


def _compute_with_parts(function: Any, arguments: Any, keywords: Any, caller: Any) -> Any:
    name = function.__name__
    differentiates = function is torch.autograd.grad or function is torch.autograd.backward
    if name in OF_ALL or differentiates or is_called_for_shards(caller):
        return function(*arguments, **keywords)
    if name == "__set__" and isinstance(arguments[0], DTensor):
        return _set(function, *arguments)
    sharded: list[DTensor] = []
    parts: list[torch.Tensor] = []
    others: list[torch.Tensor] = []
    given: list[int] = []

    def take(tensor: torch.Tensor) -> torch.Tensor:
        if not isinstance(tensor, DTensor):
            others.append(tensor)
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
        return sharded_as(sharded[given[-1]], tensor)

    def cut(tensor: torch.Tensor) -> torch.Tensor:
        like = next((one for one in sharded if one.shape == tensor.shape), None)
        if like is None or isinstance(tensor, DTensor) or tensor.shape in shapes:
            return tensor
        return cast(DTensor, shard_like(tensor, like)).to_local()

    taken, named = map_tensors(take, arguments), map_tensors(take, keywords)
    shapes = [part.shape for part in parts if part.ndim]
    is_written = bool(arguments) and arguments[0] is taken[0] and writes_in_place(name, keywords)
    if sharded and not is_written:  # else a plain tensor is, of which nothing else may be written
        taken, named = map_tensors(cut, taken), map_tensors(cut, named)
        others = [cut(other) for other in others]
    pairs_each = name not in OF_ANY_SHAPE and not name.startswith("_foreach_")  # lists are paired entry by entry
    if shapes and pairs_each and any(other.numel() != 1 and other.shape not in shapes for other in others):
        return function(*arguments, **keywords)
    return map_tensors(give, function(*taken, **named))


def _set(function: Any, target: DTensor, value: Any) -> None:
    """`p.data = value` and `p.grad = value`: a value like the part is this rank's."""
    if isinstance(value, torch.Tensor) and not isinstance(value, DTensor) and value.shape == target.to_local().shape:
        value = sharded_as(target, value)
    if function.__self__ is torch.Tensor.data:
        target.detach().copy_(value.detach())  # set so, it would leave the shard as it is
    else:
        function(target, value)


def sharded_as(like: DTensor, part: torch.Tensor) -> DTensor:
    layout: Any = like.device_mesh, like.placements
    return DTensor.from_local(part, *layout, run_check=False, shape=like.shape, stride=like.stride())


def _layout(tensor: torch.Tensor) -> Any:
    return tensor.shape, tensor.device
