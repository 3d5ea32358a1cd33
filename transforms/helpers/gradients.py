"""When gradients are reduced over ranks: no_sync and DDP's flag, for models that may be sharded."""

import functools
import warnings
import weakref
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_pre_hook

from .tensors import tensors_in
from .units import sharded_behind
from .unsynced import unsynced_gradient
from .whole import shard_like
from .wrapped import stands_for


def no_gradient_sync(model: Any, *args: Any, **kwargs: Any) -> AbstractContextManager[None]:
    """`model.no_sync()`. A model that was a DDP model is asked at its forward, as DDP is; any other at its backward."""
    sharded = sharded_behind(model, "no_sync")
    return model.no_sync(*args, **kwargs) if sharded is None else _without_sync(sharded)


@contextmanager
def _without_sync(model: Any) -> Iterator[None]:
    drop_unsynced_at_zero_grad(model)
    before = gradient_sync(model) if stands_for(model) == "ddp" else getattr(model, "_syncs_gradients", True)
    switch = set_gradient_sync if stands_for(model) == "ddp" else _switch_sync
    switch(model, False)
    try:
        yield
    finally:
        switch(model, before)


def _switch_sync(model: Any, value: bool) -> None:
    model._syncs_gradients = value
    model.set_requires_gradient_sync(value)


def gradient_sync(model: Any) -> bool:
    """`model.require_backward_grad_sync`."""
    sharded = sharded_behind(model, "require_backward_grad_sync")
    if sharded is None or stands_for(sharded) == "fsdp1":
        return model.require_backward_grad_sync
    return getattr(sharded, "require_backward_grad_sync", True)


def set_gradient_sync(model: Any, value: bool) -> None:
    """`model.require_backward_grad_sync = value`. It counts at the next forward, as in DDP; FSDP1 never read it."""
    sharded = sharded_behind(model, "require_backward_grad_sync")
    if sharded is None:
        model.require_backward_grad_sync = value
        return
    drop_unsynced_at_zero_grad(sharded)
    like = stands_for(sharded)
    if like == "ddp":
        read_sync_at_forwards(sharded)
    sharded.require_backward_grad_sync = value
    if like is None:
        _switch_sync(sharded, value)


def read_sync_at_forwards(model: Any) -> None:
    """Let backwards of `model` reduce gradients if this was asked for at the forward, as in DDP.

    A forward from before that waits for its backward was synchronized; one without gradients cannot be told from it.
    """
    if hasattr(model, "_synced_forward_pending"):
        return
    model._synced_forward_pending = any(group._post_forward_indices for group in _groups(model))
    model.require_backward_grad_sync = getattr(model, "require_backward_grad_sync", True)
    drop_unsynced_at_zero_grad(model)
    model.register_forward_pre_hook(torch.compiler.disable(_read_sync))
    model.register_forward_hook(torch.compiler.disable(_await_backward))


def _read_sync(model: Any, args: object) -> None:
    """A backward reduces gradients if any forward since the last such backward was to be synchronized."""
    if torch.is_grad_enabled():
        model._synced_forward_pending = model._synced_forward_pending or model.require_backward_grad_sync
        model.set_requires_gradient_sync(model._synced_forward_pending)


def _await_backward(model: Any, args: object, output: object) -> None:
    def backward_began(_: torch.Tensor) -> None:
        model._synced_forward_pending = False

    for tensor in tensors_in(output) if torch.is_grad_enabled() else ():
        if tensor.requires_grad:
            tensor.register_hook(backward_began)


def drop_unsynced_at_zero_grad(model: nn.Module) -> None:
    """Let optimizers' zero_grad drop gradients of `model` that wait to be reduced, as if they were in `p.grad`.

    fully_shard keeps them apart until a backward reduces them: those of a window that was given up would be part of the
    next step.
    """
    of_optimizers, optimizers = Optimizer.zero_grad, cast(Any, Optimizer)
    if hasattr(Optimizer, "_may_wait"):  # this file may be there in several copies
        optimizers._may_wait.add(model)
        return
    optimizers._may_wait = weakref.WeakSet([model])  # models with backwards that did not reduce gradients

    @functools.wraps(of_optimizers)
    def zero_grad(optimizer: Any, *args: Any, **kwargs: Any) -> None:
        of_optimizers(optimizer, *args, **kwargs)
        owned = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
        for group in (group for model in optimizers._may_wait for group in _groups(model)):
            found = [managed for managed in group.fsdp_params if id(managed.sharded_param) in owned]
            for managed in found:
                managed.unsharded_accumulated_grad = None
                if hasattr(managed, "_unsharded_param"):  # since the first forward
                    managed._unsharded_param.grad = None
            if found:
                group._partial_reduce_output = None  # of HYBRID_SHARD

    optimizers.zero_grad = zero_grad
    register_optimizer_step_pre_hook(_reduce_what_waits)


@torch.no_grad()
def _reduce_what_waits(optimizer: Any, *_: Any) -> None:
    """In front of a step behind a backward that has not reduced gradients, as where a last window was cut short.

    DDP's ranks would step by their own gradients, each, and go apart; the average is what all of them have.
    """
    parameters = [p for group in optimizer.param_groups for p in group["params"] if isinstance(p, DTensor)]
    waiting = [(p, gradient) for p in parameters if (gradient := unsynced_gradient(p)) is not None]
    if waiting:
        warnings.warn("gradients are averaged at this step: its last backward ran under no_sync()", stacklevel=2)
    for p, gradient in waiting:
        mesh = p.device_mesh
        for dimension in range(mesh.ndim):
            dist.all_reduce(gradient, group=mesh.get_group(dimension))
        part: Any = shard_like(gradient / mesh.size(), p)
        p.grad = part.to(p.dtype) if p.grad is None else p.grad + part
    forget = {id(p) for p, _ in waiting}
    for managed in (m for model in cast(Any, Optimizer)._may_wait for group in _groups(model) for m in group.fsdp_params):
        if id(managed.sharded_param) in forget:
            managed.unsharded_accumulated_grad = None
            if hasattr(managed, "_unsharded_param"):
                managed._unsharded_param.grad = None


def _groups(model: nn.Module) -> list[Any]:
    """What gathers and reduces the parameters of each unit."""
    states = [unit._get_fsdp_state() for unit in model.modules() if isinstance(unit, FSDPModule)]
    return [state._fsdp_param_group for state in states if state._fsdp_param_group is not None]
