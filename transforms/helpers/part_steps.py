"""Optimizers of other libraries under FSDP1: their kernels saw each rank's own part as plain tensors, and take no DTensors."""

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer

from .parameters import note_change
from .parts import sharded_as


def step_on_parts(optimizer: Any) -> Any:
    """`optimizer`, with steps that see this rank's part of sharded parameters, of their gradients and of its state.

    Outside of steps the state is sharded, so that functions which gather it see what it is. torch's own optimizers step on
    DTensors, and come as they are.
    """
    if not isinstance(optimizer, Optimizer) or type(optimizer).__module__.startswith("torch.optim"):
        return optimizer
    parts: dict[Any, nn.Parameter] = {}

    def take_gradients() -> None:
        for p, part in parts.items():
            gradient: Any = p.grad
            part.grad = gradient.to_local() if isinstance(gradient, DTensor) else gradient

    def evaluated(closure: Callable[[], Any]) -> Any:
        result = closure()
        take_gradients()
        return result

    def enter(_: Any, args: Any, kwargs: Any) -> Any:
        sharded: list[Any] = [p for group in optimizer.param_groups for p in group["params"] if isinstance(p, DTensor)]
        parts.update((p, nn.Parameter(p.detach().to_local(), p.requires_grad)) for p in sharded)
        take_gradients()
        for p, part in parts.items():
            if p in optimizer.state:
                state: dict[str, Any] = optimizer.state.pop(p)
                local: Any = {k: v.to_local() if isinstance(v, DTensor) else v for k, v in state.items()}
                optimizer.state[part] = local
        for group in optimizer.param_groups:
            group["params"][:] = [parts.get(p, p) for p in group["params"]]
        given = [functools.partial(evaluated, value) if callable(value) else value for value in args]
        return tuple(given), {key: functools.partial(evaluated, v) if callable(v) else v for key, v in kwargs.items()}

    def leave(*_: Any) -> None:
        note_change()
        back = {part: p for p, part in parts.items()}
        for group in optimizer.param_groups:
            group["params"][:] = [back.get(p, p) for p in group["params"]]
        for part, p in back.items():
            if part in optimizer.state:
                optimizer.state[p] = {k: _laid_out(p, part, v) for k, v in optimizer.state.pop(part).items()}
        parts.clear()

    optimizer.register_step_pre_hook(enter)
    optimizer.register_step_post_hook(leave)
    return optimizer


def _laid_out(p: Any, part: torch.Tensor, value: Any) -> Any:
    return sharded_as(p, value) if isinstance(value, torch.Tensor) and value.shape == part.shape else value
