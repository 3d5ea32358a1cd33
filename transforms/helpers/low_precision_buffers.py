"""Buffers in a lower precision, as FSDP1's MixedPrecision(buffer_dtype=...) kept them."""

from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any

import torch
from torch import nn


def cast_buffers(modules: Iterable[nn.Module], dtype: torch.dtype) -> None:
    """Cast the floating-point buffers of `modules`; in state dicts they have the dtype that they had, as FSDP1 gave it back."""
    for module in modules:
        buffers = {name: b for name, b in module._buffers.items() if b is not None and b.is_floating_point() and b.dtype != dtype}
        for name, buffer in buffers.items():
            module._buffers[name] = buffer.to(dtype)
        if buffers:
            module._register_state_dict_hook(partial(_cast_back, {name: buffer.dtype for name, buffer in buffers.items()}))


def _cast_back(dtypes: Mapping[str, torch.dtype], module: nn.Module, state: dict[str, Any], prefix: str, _: object) -> None:
    for key, dtype in ((prefix + name, dtype) for name, dtype in dtypes.items()):
        if key in state:
            state[key] = state[key].to(dtype)
