"""Buffers that follow the first rank, as under DDP."""

from collections.abc import Callable, Collection
from typing import Any, cast

import torch
import torch.distributed as dist
from torch.distributed.utils import _sync_params_and_buffers

from .ddp_gradients import gradients_are_synced
from .each_rank import models_and_optimizers


def broadcast_buffers_before_forward(module: Any, group: Any = None, ignored_names: Collection[str] = ()) -> None:
    """Give every rank the first rank's buffers before a forward that follows a training forward, as DDP does.

    Forwards after one without gradients, or without gradient synchronization, keep each rank's own (DDP's
    require_forward_param_sync).
    """
    due = [True]
    module._past_ddp = False  # needed for: past_ddp

    def broadcast(*_: Any) -> None:
        if module._past_ddp:  # needed for: past_ddp
            return
        buffers = [b.data for name, b in module.named_buffers() if name not in ignored_names]  # .data: no new version
        if due[0] and buffers:
            _sync_params_and_buffers(group or cast(Any, dist.group.WORLD), buffers, 250 * 1024**2, 0)

    def note(*_: Any) -> None:
        if module._past_ddp:  # needed for: past_ddp
            return
        due[0] = torch.is_grad_enabled() and gradients_are_synced(module)

    def broadcast_once() -> None:
        broadcast()
        due[0] = False

    module._sync_buffers = broadcast_once  # needed for: buffers_first
    module.register_forward_pre_hook(torch.compiler.disable(broadcast))
    module.register_forward_hook(torch.compiler.disable(note))


def sync_buffers(*things: Any) -> None:
    """Give every rank the first rank's buffers of models, also of those that other objects hold, where the next forward would: in
    a loop that ranks leave at different times, no forward can. All ranks come here."""
    for model in models_and_optimizers(things):
        getattr(model, "_sync_buffers", lambda: None)()


def past_ddp(model: Any) -> Callable[..., Any]:
    """`model`, to be called with each rank's own buffers, as what DDP had wrapped: its forward sends none of the first rank's."""

    def run(*args: Any, **kwargs: Any) -> Any:
        model._past_ddp = True
        try:
            return model(*args, **kwargs)
        finally:
            model._past_ddp = False

    return run if hasattr(model, "_past_ddp") else model
