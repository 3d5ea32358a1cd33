"""Numbers read off a rank's shard, and data assigned to a sharded parameter, which goes nowhere."""

from __future__ import annotations

from typing import Any

import torch

from .after_import import after_import
from .exact_clip import WAS_PARTIAL
from .patching import Function
from .places import called_by_user
from .tripwires import Tripwires

_READS = ("item", "tolist", "numpy", "__float__", "__int__", "__bool__", "__index__", "__format__")


def install(wires: Tripwires) -> None:
    after_import("torch.distributed.tensor", lambda: _install(wires))


def _install(wires: Tripwires) -> None:
    from torch.distributed.tensor import DTensor

    for name in _READS:
        # DTensor inherits them: the replacement is found on DTensor itself, plain tensors keep theirs.
        setattr(DTensor, name, _watched(wires, name, getattr(torch.Tensor, name)))
    data: Any = torch.Tensor.data
    DTensor.data = property(data.__get__, _assigned(wires, data.__set__))  # pyright: ignore[reportAttributeAccessIssue]


def _watched(wires: Tripwires, name: str, original: Function) -> Function:
    shown = f"{name.strip('_')}()" if name.startswith("__") else f".{name}()"

    def read(tensor: Any, *args: Any, **kwargs: Any) -> Any:
        if called_by_user() and _is_part(tensor) and not (name == "__format__" and args == ("",)):
            text = (
                f"reads a number off this rank's shard by {shown}: other ranks have other parts; call .full_tensor() "
                "on it first, on all ranks"
            )
            wires.fire("read", "FS701", text)
        return original(tensor, *args, **kwargs)

    read.__name__ = name
    return read


def _is_part(tensor: Any) -> bool:
    """Whether this rank holds a part (or a summand) of the value only."""
    if getattr(tensor, WAS_PARTIAL, False):
        return True
    sizes = tensor.device_mesh.shape
    return any(size > 1 and not placement.is_replicate() for size, placement in zip(sizes, tensor.placements, strict=True))


def _assigned(wires: Tripwires, original: Function) -> Function:
    def assign(tensor: Any, value: Any) -> None:
        before = tensor._local_tensor.data_ptr() if called_by_user() and hasattr(tensor, "_local_tensor") else None
        original(tensor, value)
        given = value._local_tensor if hasattr(value, "_local_tensor") else value
        if before is not None and before == tensor._local_tensor.data_ptr() != given.data_ptr():
            text = (
                "assigns .data of a sharded parameter, which keeps its old values: write "
                "parameter.copy_(distribute_tensor(value, …)) under torch.no_grad()"
            )
            wires.fire("data", "FS702", text)

    return assign
