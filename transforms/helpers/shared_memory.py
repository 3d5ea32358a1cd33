"""Memory that a parameter of DDP would share with a larger tensor, as flat copies of all parameters do."""

from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import nn
from torch.distributed.tensor import DTensor

_watched: WeakKeyDictionary[nn.Module, dict[int, tuple[Any, torch.Tensor, Any]]] = WeakKeyDictionary()
"""Of each unit: parameters, what was assigned to their `.data` and lies in larger memory, and what was in it then."""


def watch_memory(unit: nn.Module, parameter: torch.Tensor, value: torch.Tensor) -> None:
    """Note what `parameter.data` was assigned: the next forwards of the unit raise RuntimeError if somebody has written there,
    or if its gradient was made part of a larger tensor too.

    A parameter of DDP has the new values then, and its backward writes to that tensor; a sharded one has memory of its own.
    """
    if unit not in _watched:
        _watched[unit] = {}
        check: Any = torch.compiler.disable(_require_unwritten)
        unit.register_forward_pre_hook(check, prepend=True)
    _watched[unit].pop(id(parameter), None)
    if _is_part(value):
        _watched[unit][id(parameter)] = parameter, value.detach(), _sums(value)


def _require_unwritten(unit: nn.Module, _: Any) -> None:
    for parameter, value, sums in _watched[unit].values():
        assigned, _ = getattr(parameter.grad, "_assigned", (parameter.grad, None))
        if _sums(value) != sums or (torch.is_grad_enabled() and _is_part(assigned)):
            raise RuntimeError(
                "FS709: `.data` of a parameter was made part of a flat tensor, which was written to or gets gradients: sharded "
                "ones have memory of their own. Step on the parameters themselves, or keep DDP for this model (--ddp keep)"
            )


def _is_part(value: Any) -> bool:
    """Whether a whole tensor lies in the memory of a larger one."""
    if value is None or isinstance(value, DTensor):
        return False
    return value.untyped_storage().nbytes() > value.numel() * value.element_size()


def _sums(value: torch.Tensor) -> tuple[float, float]:
    numbers = value.detach().double()
    return numbers.sum().item(), numbers.norm().item()
