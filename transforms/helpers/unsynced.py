"""Gradients of one rank's own that wait for the backward that reduces them: DDP has them in `p.grad`."""

from typing import Any

import torch
from torch import nn
from torch.distributed.tensor import DTensor

from .replaced_data import manager_of


def unsynced_gradient(parameter: Any) -> torch.Tensor | None:
    """What backwards without synchronization have added up on this rank for a sharded parameter, whole; None if nothing has."""
    _, managed = manager_of(parameter)
    if managed is None or hasattr(parameter, "_acts_as_part"):
        return None
    gathered = getattr(managed, "_unsharded_param", None)  # since the first forward
    found = managed.unsharded_accumulated_grad
    return found if found is not None or gathered is None else gathered.grad


def with_unsynced_gradients(parameters: list[Any]) -> list[Any]:
    """The parameters, and in the place of each whose gradient waits a plain one that has it as its own.

    Raises RuntimeError where a gradient was reduced already that others were added to since.
    """
    return [_stand_in(parameter) if isinstance(parameter, DTensor) else parameter for parameter in parameters]


def _stand_in(parameter: Any) -> Any:
    gradient = unsynced_gradient(parameter)
    if gradient is None:
        return parameter
    if parameter.grad is not None:
        raise RuntimeError(
            "gradients are clipped that a reduced one was in before: what this rank has added cannot be clipped with it. "
            "Clip outside of no_gradient_sync, behind the last micro-batch"
        )
    found = nn.Parameter(torch.empty_like(gradient))
    found.grad = gradient
    return found
