"""torch.autograd.grad by sharded parameters: each rank gets the whole gradients of its own loss, as through DDP."""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import Any
from weakref import WeakSet

import torch
from torch import nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor
from torch.optim.optimizer import register_optimizer_step_post_hook

from .ddp_gradients import without_reduction
from .parameters import note_change, reshard_at_change
from .whole import whole


def note_gathered_forms(module: nn.Module) -> None:
    """Let sharded parameters know what forwards gather of them: that is in the graphs that gradients are asked of."""
    if not hasattr(DTensor, "_units_differentiated"):
        DTensor._units_differentiated = WeakSet()  # pyright: ignore[reportAttributeAccessIssue]
        register_optimizer_step_post_hook(note_change)
    for part in module.modules():
        group = part._get_fsdp_state()._fsdp_param_group if isinstance(part, FSDPModule) else None
        if group:
            DTensor._units_differentiated.add(part)  # pyright: ignore[reportAttributeAccessIssue]
        for managed in group.fsdp_params if group else ():
            managed.sharded_param._managed_by = managed  # pyright: ignore[reportAttributeAccessIssue]


def gradients_of_own_loss(
    outputs: Any,
    inputs: Any,
    grad_outputs: Any = None,
    retain_graph: bool | None = None,
    create_graph: bool = False,
    only_inputs: bool = True,
    allow_unused: bool | None = None,
    is_grads_batched: bool = False,
    materialize_grads: bool = False,
) -> tuple[torch.Tensor | None, ...]:
    """`torch.autograd.grad`: in the graph is what forwards gathered of a sharded parameter, and the parameter elsewhere.

    Where the graph is kept for a backward, ranks may ask another number of times.
    """
    asked = [inputs] if isinstance(inputs, torch.Tensor) else list(inputs)
    gathered = [getattr(getattr(tensor, "_managed_by", None), "_unsharded_param", None) for tensor in asked]
    in_forwards = [tensor for tensor in gathered if tensor is not None]
    ask = partial(
        torch.autograd.grad, outputs, [*asked, *in_forwards], grad_outputs, retain_graph, create_graph, only_inputs,
        allow_unused=True, is_grads_batched=is_grads_batched,
    )  # fmt: skip
    sharded: list[Any] = [tensor for tensor in asked if isinstance(tensor, DTensor)]
    for tensor in sharded:
        tensor._own_gradients = []  # of what `whole` made of it: not averaged, as in a backward
    try:
        with _gathered_until_backward() if retain_graph and not create_graph else nullcontext():
            found = ask()
        own = [getattr(tensor, "_own_gradients", []) for tensor in asked]
    finally:
        for tensor in sharded:
            tensor._own_gradients = None
    of_forwards = iter(found[len(asked) :])
    result: list[torch.Tensor | None] = []
    for tensor, in_forward, outside, others in zip(asked, gathered, found, own, strict=False):
        all_parts = (whole(outside), None if in_forward is None else next(of_forwards), *others)
        parts = [part for part in all_parts if part is not None]
        if not parts and materialize_grads:
            parts = [torch.zeros(tensor.shape, dtype=tensor.dtype, device=tensor.device)]
        if not parts and not allow_unused:
            raise RuntimeError(f"a tensor of {tuple(tensor.shape)} was not used in the graph: pass allow_unused=True for None")
        result.append(sum(parts[1:], parts[0]) if parts else None)
    return tuple(result)


@contextmanager
def _gathered_until_backward() -> Iterator[None]:
    """Inside, a backward gathers each unit that it needs, which stays so until the next one, and does nothing else over ranks.

    A unit is gathered once then, whether a rank asks first or goes backward at once. What is registered as the parameters
    meanwhile are the sharded ones, which optimizers know.
    """
    states = [unit._get_fsdp_state() for unit in DTensor._units_differentiated]  # pyright: ignore[reportAttributeAccessIssue]
    groups = [state._fsdp_param_group for state in states]
    before = [(state, state._training_state) for state in states]
    fresh: list[Any] = []

    def gather(group: Any, *_: Any) -> None:
        if not group.is_unsharded:
            fresh.append(group)
        group.unshard()
        group.wait_for_unshard()

    fresh += [group for group in groups if _is_hidden(group)]
    for state, group in zip(states, groups, strict=True):
        state._register_root_post_backward_final_callback = lambda: None
        group.pre_backward, group.post_backward = partial(gather, group), lambda *_: None
    try:
        with without_reduction():
            yield
    finally:
        for state, was in before:
            state._training_state = was
            del state._register_root_post_backward_final_callback
        for group in groups:
            del group.pre_backward, group.post_backward
        for group in fresh:
            if group.is_unsharded and not _is_hidden(group):
                _hide(group)
        reshard_at_change(fresh)


def _hide(group: Any) -> None:
    """Register the sharded parameters of a unit that stays gathered, until a forward or backward asks for it: that may be one
    which a checkpoint runs again."""
    for managed in group.fsdp_params:
        managed._setattr_on_modules(managed.sharded_param)
    group.unshard = partial(_show, group, group.unshard)


def _show(group: Any, unshard: Any, *arguments: Any, **keywords: Any) -> None:
    group.unshard = unshard
    for managed in group.fsdp_params if group.is_unsharded else ():
        managed._setattr_on_modules(managed._unsharded_param)
    unshard(*arguments, **keywords)


def _is_hidden(group: Any) -> bool:
    return getattr(group.unshard, "func", None) is _show
