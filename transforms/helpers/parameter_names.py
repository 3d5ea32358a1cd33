"""The names of a model's parameters, buffers and modules, with what the old wrappers put into them."""

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn
from torch.distributed.fsdp import FSDPModule

from .ddp_keys import renaming


def named_parameters(model: Any, *args: Any, **kwargs: Any) -> Iterator[tuple[str, nn.Parameter]]:
    """`model.named_parameters(...)`, with names as in the wrapper that sharding stands for."""
    rename = _naming(model, kwargs.get("prefix") or (args[0] if args else ""))
    return ((rename(name), parameter) for name, parameter in model.named_parameters(*args, **kwargs))


def named_buffers(model: Any, *args: Any, **kwargs: Any) -> Iterator[tuple[str, torch.Tensor]]:
    """`model.named_buffers(...)`, with names as in the wrapper that sharding stands for."""
    rename = _naming(model, kwargs.get("prefix") or (args[0] if args else ""))
    return ((rename(name), buffer) for name, buffer in model.named_buffers(*args, **kwargs))


def named_modules(model: Any, memo: Any = None, prefix: str = "", **kwargs: Any) -> Iterator[tuple[str, nn.Module]]:
    """`model.named_modules(...)`, with names as in the wrapper that sharding stands for.

    The wrapper itself is not there any more: under its name comes a plain module that has the model in it, as it had.
    """
    rename = _naming(model, prefix)
    for name, module in model.named_modules(memo, prefix, **kwargs):
        outer, _, inner = rename(name).rpartition(".")
        if inner == "_fsdp_wrapped_module" or (inner == "module" and getattr(module, "_wrapped_like", None) == "ddp"):
            stand_in = nn.Module()
            stand_in.add_module(inner, module)
            yield outer, stand_in
        yield rename(name), module


def _naming(model: nn.Module, prefix: str) -> Callable[[str], str]:
    """DDP put `module.` in front of all names; FSDP1 `_fsdp_wrapped_module.` there and before what is in each unit."""
    prefix = prefix and f"{prefix}."
    rename = renaming(model, prefix)
    units: list[str] = []  # needed for: fsdp1_names
    if not any(getattr(part, "_wrapped_like", None) == "ddp" for part in model.modules()):  # needed for: fsdp1_names
        units = [name and f"{name}." for name, part in model.named_modules() if isinstance(part, FSDPModule)]
        units = [] if getattr(model, "_shows_full_parameters", False) else units  # where FSDP1 took it out of names

    def in_wrappers(key: str) -> str:
        dotted = f"{key}." if key else ""
        for unit in sorted(units, key=len, reverse=True):  # needed for: fsdp1_names
            if dotted.startswith(prefix + unit):
                dotted = f"{prefix}{unit}_fsdp_wrapped_module.{dotted[len(prefix + unit) :]}"
        return rename(dotted[:-1])

    return in_wrappers
