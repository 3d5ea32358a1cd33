"""A check that raises only if a value really is sharded."""

from collections.abc import Mapping
from typing import TypeVar

import torch
from torch import nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor

Value = TypeVar("Value")


def stop_if_sharded(value: Value, message: str) -> Value:
    """`value`, unless it is or holds a sharded tensor or module: then RuntimeError(message)."""
    if holds_shards(value):
        raise RuntimeError(message)
    return value


def holds_shards(value: object) -> bool:
    """Whether `value`, or something in it (lists, tuples, sets, mappings, optimizers), is sharded; whole copies are not."""
    if isinstance(value, nn.Module):
        return any(isinstance(module, FSDPModule) for module in value.modules())
    if isinstance(value, DTensor):
        sizes = value.device_mesh.shape
        return any(size > 1 and not placement.is_replicate() for size, placement in zip(sizes, value.placements, strict=True))
    if isinstance(value, torch.optim.Optimizer):
        value = value.param_groups
    if isinstance(value, Mapping):
        return any(holds_shards(item) for item in value.values())
    return isinstance(value, (list, tuple, set, frozenset)) and any(holds_shards(item) for item in value)
