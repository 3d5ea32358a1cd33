"""FSDP.summon_full_params and FSDP1's apply for models that may be sharded."""

import functools
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor

from .parameters import note_change, resharded, write_shard
from .units import fsdp1_class, is_sharded
from .whole import shard_like


@contextmanager
def full_parameters(
    module: nn.Module,
    recurse: bool = True,
    writeback: bool = True,
    rank0_only: bool = False,
    offload_to_cpu: bool = False,
    with_grads: bool = False,
) -> Iterator[None]:
    """`FSDP.summon_full_params`: plain, whole parameters are registered inside; edits reach the shards at the end.

    Every rank enters. A forward inside runs sharded, as in training, and sees the edits made so far.
    """
    with ExitStack() as stack:
        fsdp1 = fsdp1_class(module)  # needed for: old_wrappers
        if fsdp1 is not None:  # needed for: old_wrappers
            arguments = (recurse, writeback, rank0_only, offload_to_cpu, with_grads)
            stack.enter_context(fsdp1.summon_full_params(module, *arguments))
        own = getattr(module, "summon_full_params", None)
        if getattr(own, "__self__", None) is module and not is_sharded(module):  # of another library's wrapper
            asked = {"recurse": recurse, "writeback": writeback}
            stack.enter_context(cast(Any, own)(**{name: value for name, value in asked.items() if not value}))
        if is_sharded(module):
            if rank0_only and writeback:
                raise NotImplementedError("writeback=True with rank0_only=True: other ranks would keep their old parts")
            stack.enter_context(_whole_parameters(module, recurse, writeback, rank0_only, offload_to_cpu, with_grads))
            if not hasattr(module, "_summoned"):  # nothing is held whole inside, where ranks may have different things
                cast(Any, module)._summoned = True
                stack.callback(delattr, module, "_summoned")
            if not hasattr(module, "_shows_full_parameters"):  # needed for: fsdp1_names
                cast(Any, module)._shows_full_parameters = True
                stack.callback(delattr, module, "_shows_full_parameters")
        yield


@contextmanager
def _whole_parameters(
    module: nn.Module, recurse: bool, writeback: bool, rank0_only: bool, offload_to_cpu: bool, with_grads: bool
) -> Iterator[None]:
    sharded: list[Any] = [m for m in resharded(module).modules() if isinstance(m, FSDPModule)]
    inner = set() if recurse else {m for unit in sharded if unit is not module for m in unit.modules()}
    owners = [m for m in module.modules() if m not in inner]
    slots = [(m, name, p) for m in owners for name, p in m._parameters.items() if isinstance(p, DTensor)]
    full = {p: _whole_copy(p, offload_to_cpu, with_grads) for _, _, p in slots}
    shown_first = {p: p.to_local().detach().clone() for p in full}
    shards = [t.to_local().detach() for p in full for t in (p, p.grad) if isinstance(t, DTensor)]
    saved = [] if writeback else [(shard, shard.clone()) for shard in shards]
    if rank0_only and dist.get_rank() != 0:
        slots, owners, full = [], [], {}
    depth = 0  # of unit forwards running inside the context

    def show_full(owner: nn.Module | None = None, _: object = None) -> None:
        for at, name, p in slots:
            if owner in (None, at):
                at._parameters[name] = full[p]

    def show_shards(owner: nn.Module | None = None, _: object = None) -> None:
        for at, name, p in slots:
            if owner in (None, at):
                shown, at._parameters[name] = at._parameters[name], p
                if shown is not None and shown is not p:  # p itself, if something inside has resharded the unit
                    full[p] = shown

    def write_shards() -> None:
        resharded(module)
        show_shards()
        for p, edited in full.items():
            _write_edits(p, edited, shown_first[p])
            p.requires_grad_(edited.requires_grad)
            if with_grads and isinstance(p.grad, DTensor) and edited.grad is not None:
                write_shard(p.grad, edited.grad)

    def before_forward(*_: object) -> None:
        nonlocal depth
        if depth == 0:
            write_shards()
        depth += 1

    def after_forward(*_: object) -> None:
        nonlocal depth
        depth -= 1
        if depth == 0:
            resharded(module)
            show_full()

    def around(method: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:  # needed for: forward_methods
        before_forward()
        try:
            return method(*args, **kwargs)
        finally:
            after_forward()

    registered = [  # needed for: forward_methods
        (unit, name, method)
        for unit in sharded
        for name, method in vars(unit).items()
        if getattr(method, "__self__", None) is unit and hasattr(method, "__wrapped__")  # register_fsdp_forward_method
    ]
    for unit, name, method in registered:  # needed for: forward_methods
        setattr(unit, name, functools.partial(around, method))
    outer = [(unit, getattr(unit, "_around_methods", None)) for unit in sharded]  # needed for: forward_methods
    for unit in sharded:  # needed for: forward_methods
        unit._around_methods = around  # for methods that are registered inside
    hooks = [unit.register_forward_pre_hook(before_forward, prepend=True) for unit in sharded]
    hooks += [unit.register_forward_hook(after_forward, always_call=True) for unit in sharded]
    for owner in owners:  # fully_shard's own hook after load_state_dict wants to see the shards
        hooks.append(owner.register_load_state_dict_post_hook(show_shards))
        cast(OrderedDict[int, Any], owner._load_state_dict_post_hooks).move_to_end(hooks[-1].id, last=False)
        hooks.append(owner.register_load_state_dict_post_hook(show_full))
    show_full()
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()
        for unit, name, method in registered:  # needed for: forward_methods
            setattr(unit, name, method)
        for unit, before in outer:  # needed for: forward_methods
            unit._around_methods = before
        write_shards()
        for shard, before in saved:
            shard.copy_(before)


@torch.no_grad()
def _write_edits(sharded: DTensor, edited: torch.Tensor, before: torch.Tensor) -> None:
    """Copy this rank's part of what was edited: the rest may have been written into the shard itself, by who kept that."""
    if edited.shape != sharded.shape:
        return write_shard(sharded, edited)  # which says so
    part, shard = cast(DTensor, shard_like(edited.to(sharded.device), sharded)).to_local(), sharded.to_local()
    note_change()
    shard.copy_(torch.where(part == before, shard, part.to(shard.dtype)))
    before.copy_(shard)


def _whole_copy(p: DTensor, to_cpu: bool, with_grad: bool) -> nn.Parameter:
    def copy(tensor: DTensor) -> torch.Tensor:
        on_mesh = cast(DTensor, tensor.to(tensor.device_mesh.device_type))  # offloaded ones lie on the CPU
        gathered = on_mesh.full_tensor().detach()
        return gathered.cpu() if to_cpu else gathered

    full = nn.Parameter(copy(p), requires_grad=p.requires_grad)
    if with_grad and isinstance(p.grad, DTensor):
        full.grad = copy(p.grad)
    return full


def method_on_full(model: Any, name: str) -> Callable[..., Any]:
    """`model.name`, a method that writes parameters or works on gradients: both are whole inside, and its edits stay."""
    method = getattr(model, name)

    def call(*args: Any, **kwargs: Any) -> Any:
        with full_parameters(model, with_grads=True):
            return method(*args, **kwargs)

    return functools.wraps(method)(call) if is_sharded(model) else method


def on_full_model(function: Callable[..., Any]) -> Callable[..., Any]:
    """`function(model, ...)` of a library, called with whole parameters: what it loads into them stays. Every rank calls it."""

    @functools.wraps(function)
    def call(model: Any, *args: Any, **kwargs: Any) -> Any:
        if not isinstance(model, nn.Module):
            return function(model, *args, **kwargs)
        with full_parameters(model):
            return function(model, *args, **kwargs)

    return call


def apply_to_full(module: Any, fn: Callable[[nn.Module], Any]) -> Any:
    """`module.apply(fn)` on whole parameters, as FSDP1 applied it: an init function sees no shards. Every rank calls it."""
    if not any(isinstance(m, FSDPModule) for m in module.modules()):
        return module.apply(fn)
    with full_parameters(module):
        return module.apply(fn)
