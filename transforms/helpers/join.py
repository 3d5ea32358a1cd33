"""DDP's Join (ranks with unequal numbers of batches) for models that may be sharded."""

import copy
from collections import UserDict
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch.distributed.algorithms.join import Join
from torch.distributed.tensor import DTensor, Shard
from torch.distributed.utils import _sync_params_and_buffers

from .tensors import tensors_in
from .units import sharded_module

Batch = TypeVar("Batch")


def join(
    joinables: Any,
    enable: bool = True,
    throw_on_early_termination: bool = False,
    divide_by_initial_world_size: bool = True,
) -> AbstractContextManager[Any]:
    """`Join(joinables, …)`, or `model.join(…)` as `join([model], …)`, around a loop over `until_all_ranks_finish(…)`."""
    models = [model for model in map(sharded_module, joinables) if model is not None]
    if not models:
        return Join(joinables, enable, throw_on_early_termination, divide_by_initial_world_size=divide_by_initial_world_size)
    return _joined(models if enable else [], throw_on_early_termination, divide_by_initial_world_size)


@contextmanager
def _joined(models: list[Any], throw: bool, by_initial_world_size: bool) -> Iterator[None]:
    hooks = [model.register_forward_hook(_weigh_gradients) for model in models]
    for model in models:
        model._join = {"throw": throw, "by_initial_world_size": by_initial_world_size, "weight": 1.0}
    try:
        yield
        for model in models:  # where the loop was left by `break`; DDP sends them when all ranks have left
            if "newest" in model._join:
                _send_buffers(model, model._join["newest"])
    finally:
        for hook in hooks:
            hook.remove()
        for model in models:
            del model._join


def _mesh_of(model: Any) -> Any:
    return next(p.device_mesh for p in model.parameters() if isinstance(p, DTensor))


def _send_buffers(model: Any, rank: int) -> None:
    _sync_params_and_buffers(_mesh_of(model).get_group(), [b.data for b in model.buffers()], 250 * 1024**2, rank)


def _weigh_gradients(model: Any, args: object, output: object) -> None:
    weight = model._join["weight"]
    for tensor in tensors_in(output) if weight != 1.0 and torch.is_grad_enabled() else ():
        if tensor.requires_grad:
            tensor.register_hook(lambda grad: grad * weight if weight else torch.zeros_like(grad))


def until_all_ranks_finish(batches: Iterable[Batch], *models: Any) -> Iterable[Batch]:
    """`batches`, inside `join`: a rank that has no more of them repeats its last one, without gradients, until all are done.

    All ranks run the body equally often. What it counts and logs it counts in repetitions too: `repeats_batch(model)`
    tells them. Write `enumerate(until_all_ranks_finish(loader, model))`, so that numbers go on. Every rank has to leave
    the loop in the same step. Outside of `join`, and for models that are not sharded, this is `batches` itself.
    """
    joined = [model for model in map(sharded_module, models) if model is not None and hasattr(model, "_join")]
    return _until_all_finish(batches, joined) if joined else batches


def repeats_batch(model: Any) -> bool:
    """Whether this step of a loop over `until_all_ranks_finish` only keeps the other ranks company."""
    return getattr(sharded_module(model), "_join", {"weight": 1.0})["weight"] == 0.0


def _until_all_finish(batches: Iterable[Batch], models: list[Any]) -> Iterator[Batch]:
    iterator, last, newest = iter(batches), [], 0
    settings = models[0]._join
    mesh = _mesh_of(models[0])
    group = mesh.get_group()
    while True:
        fresh = [batch for _, batch in zip(range(1), iterator, strict=False)]
        last = fresh or last
        flags = torch.tensor([[len(fresh), len(last)]], device=mesh.device_type)
        active, able = DTensor.from_local(flags, mesh, [Shard(0)]).full_tensor().T.tolist()
        newest = max((rank for rank, has in enumerate(active) if has), default=newest)
        for model in models:  # buffers come from the last rank that trained
            _send_buffers(model, newest)
            model._join["newest"] = newest
        if not any(active):
            for model in models:
                del model._join["newest"]
            return
        if settings["throw"] and not all(active):
            raise RuntimeError("Detected at least one rank that exhausted inputs. Throwing across all ranks.")
        if not all(able):  # a rank without any batch of its own
            sent = [last]
            dist.broadcast_object_list(sent, dist.get_global_rank(group, newest), group)
            last = last or sent[0]
        weight = 1.0 if settings["by_initial_world_size"] else len(active) / sum(active)
        for model in models:
            model._join["weight"] = weight if fresh else 0.0
        devices = [torch.cuda.current_device()] if mesh.device_type == "cuda" else []
        with nullcontext() if fresh else torch.random.fork_rng(devices):  # DDP's finished ranks draw no numbers
            yield copy.copy(last[0]) if isinstance(last[0], (dict, list, UserDict)) else last[0]  # the body may pop from it
