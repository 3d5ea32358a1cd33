"""The tensors in what a forward returns."""

import dataclasses
from collections.abc import Iterator, Mapping

import torch


def tensors_in(value: object) -> Iterator[torch.Tensor]:
    """The tensors in `value`: itself, or inside of lists, tuples, mappings and dataclasses, where DDP looks too."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from tensors_in(item)
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from tensors_in(item)
    elif dataclasses.is_dataclass(value):
        for field in dataclasses.fields(value):
            yield from tensors_in(getattr(value, field.name))
