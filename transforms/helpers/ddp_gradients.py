"""Gradients that fully_shard leaves otherwise than DDP did: of plain parameters, and of unused ones."""

from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import compress
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor

from .tensors import tensors_in


def gradients_are_synced(module: nn.Module) -> bool:
    """Whether a backward through `module` reduces gradients over ranks: what set_requires_gradient_sync said last."""
    for unit in module.modules():
        if isinstance(unit, FSDPModule) and (group := unit._get_fsdp_state()._fsdp_param_group):
            return group.reduce_grads
    return True


def on_any_rank(flags: list[bool], device: torch.device, group: Any) -> list[bool]:
    """Each flag, true where it is true on some rank."""
    mask = torch.tensor(flags, dtype=torch.uint8, device=device)
    dist.all_reduce(mask, dist.ReduceOp.MAX, group=group)
    return mask.bool().tolist()


def average_plain_gradients(module: Any, parameters: list[nn.Parameter], group: Any) -> None:
    """Average over ranks, after each backward, the gradients of parameters that are not sharded."""
    if not parameters:
        return

    def average() -> None:
        trained = [p for p in parameters if p.requires_grad]
        if not trained or not gradients_are_synced(module):
            return
        used = on_any_rank([p.grad is not None for p in trained], trained[0].device, group)
        dtype = getattr(module, "_gradients_travel_in", None)  # of a communication hook
        for parameter in compress(trained, used):
            gradient = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
            sent = gradient if dtype is None else gradient.to(dtype)
            sent.div_(dist.get_world_size(group))
            dist.all_reduce(sent, group=group)
            parameter.grad = gradient.copy_(sent)

    after_backward(module, lambda: None, average)


def drop_unused_gradients(module: Any, group: Any, elsewhere: Collection[Any] = ()) -> None:
    """find_unused_parameters: ranks may use different parameters, and what no rank used keeps the gradient it had.

    A unit reduces zeros in place of missing gradients; with zeros instead of none, weight decay and momentum would change
    parameters that DDP left alone.
    """
    fills = hasattr(module, "set_reduce_scatter_unused_params")  # from torch 2.13 on
    if fills:
        module.set_reduce_scatter_unused_params(True)
    own = [(owner, name, p) for owner in module.modules() for name, p in owner._parameters.items() if isinstance(p, DTensor)]
    sharded = [(owner, name, p) for owner, name, p in own if p not in elsewhere]  # the model that shards these reduces them
    if not sharded:
        return
    watched: set[torch.Tensor] = set()
    used: set[torch.Tensor] = set()
    kept: set[torch.Tensor] = set()

    def note(parameter: Any, _: Any) -> None:
        used.add(parameter)
        if module._ran_by_parts:  # nothing that its own forward gave does
            enter()

    def watch(*_: Any) -> None:  # the hooks belong on the gathered parameters, which autograd sees
        module._ran_by_parts = False
        for owner, name, parameter in sharded:
            gathered = owner._parameters[name]
            if gathered is None or gathered is parameter or not gathered.requires_grad:
                continue
            if gathered not in watched:
                watched.add(gathered)
                gathered.register_post_accumulate_grad_hook(partial(note, parameter))

    def begin() -> None:
        kept.clear()
        kept.update(p for _, _, p in sharded if p.grad is not None)
        for gathered in watched if not fills and gradients_are_synced(module) else ():
            if gathered.requires_grad and gathered.grad is None:
                gathered.grad = torch.zeros_like(gathered)

    def drop() -> None:
        if not gradients_are_synced(module):
            return
        parameters = [p for _, _, p in sharded]
        kept.update(compress(parameters, on_any_rank([p in used for p in parameters], parameters[0].device, group)))
        for parameter in parameters:
            if parameter not in kept:
                parameter.grad = None
        used.clear()

    module.register_forward_pre_hook(watch)
    enter = after_backward(module, begin, drop)


def after_backward(module: Any, begin: Callable[[], None], end: Callable[[], None]) -> Callable[..., None]:
    """Call `begin` when a backward enters `module`, before fully_shard does anything, and `end` after all that it does.

    What is returned enters it by another way.
    """
    queue = torch.autograd.Variable._execution_engine.queue_callback
    running = [False]

    def finish() -> None:
        if running[0]:
            running[0] = False
            end()

    def enter(_: Any = None) -> None:
        if getattr(DTensor, "_without_reduction", False):  # needed for: autograd_grad
            return
        if not running[0]:
            running[0] = True
            begin()
        queue(lambda: queue(finish))  # fully_shard queues a callback of its own in between

    def watch(_: Any, __: Any, output: Any) -> None:
        for tensor in tensors_in(output):
            if tensor.requires_grad:
                tensor.register_hook(enter)

    module.register_forward_hook(torch.compiler.disable(watch), prepend=True)
    return enter


@contextmanager
def without_reduction() -> Iterator[None]:
    """Inside, a backward is a rank's own: nothing that `after_backward` was given is called."""
    DTensor._without_reduction = True  # pyright: ignore[reportAttributeAccessIssue]
    try:
        yield
    finally:
        DTensor._without_reduction = False  # pyright: ignore[reportAttributeAccessIssue]
