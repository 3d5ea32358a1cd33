"""Collectives of torch.distributed on parameters and gradients that may be sharded."""

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch.distributed.tensor import DTensor

from .assigned_gradients import assigned, follow_assigned
from .parameters import write_shard
from .whole import map_tensors, whole


def on_whole(collective: Callable[..., Any]) -> Callable[..., Any]:
    """`collective` for tensors that may be sharded: it gets whole ones, and what it wrote to these is kept in the shards."""

    @functools.wraps(collective)
    @torch.no_grad()
    def call(*args: Any, **kwargs: Any) -> Any:
        gathered: list[tuple[DTensor, torch.Tensor]] = []

        def gather(tensor: torch.Tensor) -> torch.Tensor:
            if not isinstance(tensor, DTensor):
                return tensor
            full = tensor
            full = assigned(tensor)  # needed for: assigned_gradients
            gathered.append((tensor, whole(full)))
            return gathered[-1][1]

        work = collective(*map_tensors(gather, args), **map_tensors(gather, kwargs))
        if gathered and work is not None:  # async_op=True
            work.wait()
        for tensor, full in gathered:
            write_shard(tensor, full)
            follow_assigned(tensor, full)  # needed for: assigned_gradients
        return work

    return call


def local_part(tensor: Any) -> Any:
    """This rank's part of a tensor that may be sharded, as FSDP1 showed its flat parameters; it shares the memory."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor
