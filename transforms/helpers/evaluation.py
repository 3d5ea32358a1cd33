"""Forwards without gradients that go on with what the first of them gathered."""

import functools
from typing import Any

import torch
from torch import nn
from torch.distributed.fsdp import FSDPModule
from torch.optim.optimizer import register_optimizer_step_post_hook

from .gathered import in_backward
from .parameters import changes, note_change


def gather_once_in_evaluation(module: nn.Module) -> None:
    """Let forwards of `module` without gradients gather it once and use that, as each rank used its own copy under DDP: ranks
    may run different numbers of them, after a first one that all run.

    What was gathered is given up at the next forward with gradients; after an optimizer's step, or when a parameter has
    been written, it is gathered anew.
    """
    units: list[Any] = [part for part in module.modules() if isinstance(part, FSDPModule)]
    groups = [unit._get_fsdp_state()._fsdp_param_group for unit in units]
    groups = [group for group in groups if group is not None]
    kept: list[int] = []  # the number of changes when it was gathered

    def give_up() -> None:
        kept.clear()
        for group in groups:
            for parameter in group.fsdp_params:
                if vars(parameter).pop("free_unsharded_param", None) is not None and group.is_sharded:
                    parameter.free_unsharded_param()

    def gather() -> None:
        give_up()
        for group, unshard in zip(groups, originals, strict=True):
            group.lazy_init()
            unshard()
            group.wait_for_unshard()
            for parameter in group.fsdp_params:
                parameter.free_unsharded_param = _keep_memory
            group._to_sharded()
        kept[:] = [changes()]

    def unshard(group: Any, original: Any, async_op: bool = False) -> None:
        if torch.is_grad_enabled() or in_backward():
            if kept:
                give_up()
            original(async_op)
        elif not group.is_unsharded:
            if kept != [changes()]:
                gather()
            group._to_unsharded()

    originals = [group.unshard for group in groups]
    for group, original in zip(groups, originals, strict=True):
        group.unshard = functools.partial(unshard, group, original)
    register_optimizer_step_post_hook(note_change)


def _keep_memory() -> None:
    """In the place of what frees a gathered parameter."""
