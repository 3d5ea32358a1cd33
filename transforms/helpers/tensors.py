"""The tensors in what a forward returns."""

import dataclasses
from collections.abc import Iterator, Mapping

import torch
from torch import nn


def tensors_in(value: object, depth: int = 3) -> Iterator[torch.Tensor]:
    """The tensors in `value`: itself, or inside of lists, tuples, mappings and dataclasses, where DDP looks too, and of other
    objects, as distributions are."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from tensors_in(item, depth)
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from tensors_in(item, depth)
    elif dataclasses.is_dataclass(value):
        for field in dataclasses.fields(value):
            yield from tensors_in(getattr(value, field.name), depth)
    elif depth and is_object(value):
        for item in vars(value).values():
            yield from tensors_in(item, depth - 1)


def is_object(value: object) -> bool:
    """Whether `value` may be an output of a class that torch does not look into: no module, function, class or enumeration."""
    return hasattr(value, "__dict__") and not isinstance(value, (nn.Module, type)) and not callable(value)
