"""Gradients of parameters that a forward has left out, which FSDP1's flat parameters gave zeros."""

from typing import Any

import torch
from torch import nn
from torch.distributed.fsdp import FSDPModule


def zeros_for_unused(root: Any) -> None:
    """Give parameters without gradients zeros in units that ran: an optimizer decays them and goes on with their momentum.

    So it was in FSDP1, where a unit's parameters were one; a unit that did not run has no gradients. torch before 2.13
    cannot do it.
    """
    if not hasattr(root, "set_reduce_scatter_unused_params"):
        return

    def forget(module: Any, _: Any) -> None:
        if torch.is_grad_enabled():
            module.set_reduce_scatter_unused_params(False)

    def fill(module: Any, _: Any) -> None:
        if torch.is_grad_enabled():
            module.set_reduce_scatter_unused_params(True, recurse=False)

    modules: list[nn.Module] = list(root.modules())
    for unit in modules:
        if isinstance(unit, FSDPModule):
            unit.register_forward_pre_hook(fill)
    root.register_forward_pre_hook(forget, prepend=True)
