"""Sharded parameters in computations that take each rank's own part, as FSDP1 showed it."""

import sys
from typing import Any

import torch
from torch.distributed.tensor import DTensor

from .whole import map_tensors

WORKS_ON_SHARDS = (
    "torch.optim", "torch.distributed", "torch.amp", "torch.cuda.amp", "torch.nn.utils.clip_grad",
    __name__.removesuffix(".parts"),
)  # fmt: skip
"""Modules whose code computes with shards."""
OF_ALL = (
    "__get__", "__set__", "size", "dim", "stride", "backward", "register_hook", "requires_grad_", "__deepcopy__", "__reduce_ex__",
)  # fmt: skip
"""What is asked of a sharded tensor, or done to it, as of the whole one."""


def compute_with_parts(module: Any) -> Any:
    """Let the program compute with sharded tensors as it did with those of FSDP1: each rank with its own part.

    What is made of a part, element by element, is sharded as it is; everything else is plain and each rank's own, such as
    a sum, a norm or the number of elements. What is written in place is written into the part. Returns `module`.
    """
    DTensor.__torch_function__ = classmethod(_compute_with_parts)  # pyright: ignore[reportAttributeAccessIssue]
    return module


def _compute_with_parts(_: type, function: Any, types: Any, arguments: Any = (), keywords: Any = None) -> Any:
    keywords = keywords or {}
    with torch._C.DisableTorchFunctionSubclass():
        if function.__name__ in OF_ALL or _is_called_for_shards():
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
            like = sharded[given[-1]]
            layout: Any = like.device_mesh, like.placements
            return DTensor.from_local(tensor, *layout, run_check=False, shape=like.shape, stride=like.stride())

        return map_tensors(give, function(*map_tensors(take, arguments), **map_tensors(take, keywords)))


def _layout(tensor: torch.Tensor) -> Any:
    return tensor.shape, tensor.device


def _is_called_for_shards() -> bool:
    """Whether code of torch that works on shards called a function, itself or by other code of torch."""
    frame = sys._getframe(2)
    while frame is not None:
        module = frame.f_globals.get("__name__") or ""
        if module.startswith(WORKS_ON_SHARDS):
            return True
        if module.partition(".")[0] != "torch":
            return False
        frame = frame.f_back
    return False
