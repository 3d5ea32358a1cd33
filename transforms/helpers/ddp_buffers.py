"""Buffers that follow the first rank, as under DDP."""

from collections.abc import Collection
from typing import Any, cast

import torch
import torch.distributed as dist
from torch.distributed.utils import _sync_params_and_buffers

from .ddp_gradients import gradients_are_synced


def broadcast_buffers_before_forward(module: Any, group: Any = None, ignored_names: Collection[str] = ()) -> None:
    """Give every rank the first rank's buffers before a forward that follows a training forward, as DDP does.

    Forwards after one without gradients, or without gradient synchronization, keep each rank's own (DDP's
    require_forward_param_sync).
    """
    due = [True]

    def broadcast(*_: Any) -> None:
        buffers = [b.data for name, b in module.named_buffers() if name not in ignored_names]  # .data: no new version
        if due[0] and buffers:
            _sync_params_and_buffers(group or cast(Any, dist.group.WORLD), buffers, 250 * 1024**2, 0)

    def note(*_: Any) -> None:
        due[0] = torch.is_grad_enabled() and gradients_are_synced(module)

    module.register_forward_pre_hook(torch.compiler.disable(broadcast))
    module.register_forward_hook(torch.compiler.disable(note))
