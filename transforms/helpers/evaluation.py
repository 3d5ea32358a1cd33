"""Forwards without gradients that go on with what the first of them gathered."""

import functools
from typing import Any

import torch
from torch.distributed.fsdp import FSDPModule
from torch.optim.optimizer import register_optimizer_step_post_hook

from .gathered import in_backward
from .parameters import changes, note_change, resharded


def gather_once_in_evaluation(module: Any) -> None:
    """Let forwards of `module` without gradients gather it once and use that, as each rank used its own copy under DDP: ranks
    may run different numbers of them, after a first one that all run.

    What was gathered is given up at the next forward with gradients; after an optimizer's step, or when a parameter has
    been written, it is gathered anew.
    """
    units: list[Any] = [part for part in module.modules() if isinstance(part, FSDPModule)]
    groups = [unit._get_fsdp_state()._fsdp_param_group for unit in units]
    groups = [group for group in groups if group is not None]
    running: list[bool] = []  # forwards, and whether with gradients; checkpoints of activations have none of their own
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

    def enter(*_: Any) -> None:
        running.append(torch.is_grad_enabled())

    def leave(*_: Any) -> None:
        trained = running.pop() if running else True
        if not (trained or running or in_backward()):
            resharded(module)  # its parameters are those that an optimizer knows, or shall get to know

    def unshard(group: Any, original: Any, async_op: bool = False) -> None:
        if (running[0] if running else torch.is_grad_enabled()) or in_backward():
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
    module.register_forward_pre_hook(torch.compiler.disable(enter), prepend=True)
    module.register_forward_hook(torch.compiler.disable(leave), always_call=True)
    register_optimizer_step_post_hook(note_change)


def _keep_memory() -> None:
    """In the place of what frees a gathered parameter."""
