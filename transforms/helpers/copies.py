"""Copies of models that may be sharded, and loops over the tensors of two models."""

import copy
import functools
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from typing import Any, cast

import torch
from torch import nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from .each_rank import models_and_optimizers, whole_on_each_rank
from .sharding_hooks import is_of_sharding
from .units import is_sharded
from .whole import map_tensors, shard_like, whole

HOOKS = (
    "_forward_pre_hooks", "_forward_hooks", "_state_dict_pre_hooks", "_state_dict_hooks", "_load_state_dict_pre_hooks",
    "_load_state_dict_post_hooks", "_backward_hooks", "_backward_pre_hooks",
)  # fmt: skip

OF_HOOKS = {
    "_forward_pre_hooks_with_kwargs": "_forward_pre_hooks", "_forward_hooks_with_kwargs": "_forward_hooks",
    "_forward_hooks_always_called": "_forward_hooks",
}  # fmt: skip
"""What a module notes of its hooks, under their keys."""

OF_SHARDING = (
    "_held_whole", "_summoned", "_forward_methods", "_around_methods", "_ignored_by_sharding", "_is_fsdp_managed_module",
    "_fsdp_use_orig_params", "_gather", "_plain_parameters", "_running_forwards", "_awaits_second_backward",
    "_ranks_that_gather", "_gradients_travel_in", "_syncs_gradients", "_synced_forward_pending", "require_backward_grad_sync",
    "_shell", "_past_ddp", "_sync_buffers", "_of_wrapper", "_ran_by_parts", "_wrapped_like",
)  # fmt: skip
"""What is noted on a sharded model and does not hold of a plain one."""


def plain_copy(model: Any, memo: Any = None) -> Any:
    """`copy.deepcopy(model)`: of a sharded model, a plain copy with whole parameters on every rank, as of DDP's module.

    Every rank calls it. fully_shard's classes cannot be copied, so they and its hooks are taken off for the moment.
    """
    if not _was_sharded(model):
        return copy.deepcopy(model, memo)
    units = [m for m in model.modules() if isinstance(m, FSDPModule)]  # none in a part that a unit further out holds
    with whole_on_each_rank(model):
        hooks = [(m, name, vars(m)[name]) for m in model.modules() for name in HOOKS if vars(m).get(name)]
        classes = [(unit, type(unit)) for unit in units]
        memo = {} if memo is None else memo
        for unit in units:  # fully_shard's state holds process groups, which cannot be copied
            memo.update((id(value), {}) for name, value in vars(unit).items() if name.startswith("__composable_api"))
        try:
            for module, name, found in hooks:
                setattr(module, name, OrderedDict((key, hook) for key, hook in found.items() if not is_of_sharding(hook)))
            for unit, sharded_class in classes:
                unit.__class__ = next(base for base in sharded_class.__bases__ if base is not FSDPModule)
            copied = copy.deepcopy(model, memo)
        finally:
            for unit, sharded_class in classes:
                unit.__class__ = sharded_class
            for module, name, found in hooks:
                setattr(module, name, found)
    for module in copied.modules():
        attributes = vars(module)
        for name in [name for name in attributes if name in OF_SHARDING or name.startswith("__composable_api")]:
            del attributes[name]
        for notes, hooked in OF_HOOKS.items():
            for key in attributes.get(notes, {}).keys() - attributes.get(hooked, {}).keys():
                del attributes[notes][key]
        if is_of_sharding(attributes.get("zero_grad")):  # it calls that of the class
            del attributes["zero_grad"]
    return copied


class InWrapper(DistributedDataParallel):
    """What stands for DDP's wrapper, or a copy of it: it has the model in `module`, and so the names of before, and is of its
    class, which code asks for before it looks inside. It reduces nothing.
    """

    def __init__(self, module: nn.Module) -> None:
        nn.Module.__init__(self)
        self.module = module
        self.train(module.training)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """What the model gives."""
        return self.module(*args, **kwargs)

    def train(self, mode: bool = True) -> Any:
        """As of any module."""
        return nn.Module.train(self, mode)

    def __getstate__(self) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        return vars(self)

    def __setstate__(self, state: dict[str, Any]) -> None:
        nn.Module.__setstate__(self, state)


def wrapped_copy(model: Any) -> Any:
    """`copy.deepcopy(model)` where `model` was DDP's wrapper, or holds it: of a sharded model a plain copy, in `module` as it was
    there."""
    if not isinstance(model, nn.Module):
        held = [one for one in models_and_optimizers([model]) if isinstance(one, nn.Module) and is_sharded(one)]
        return copy.deepcopy(model, {id(one): wrapped_copy(one) for one in held})
    if getattr(model, "_wrapped_like", "ddp") != "ddp" or not is_sharded(model):
        return copy.deepcopy(model)
    return InWrapper(plain_copy(model))


def in_wrapper(model: Any) -> Any:
    """`model` for code out of sight that got DDP's wrapper: its names begin with `module.`, its own attributes are in there.

    Of a model that was not in DDP itself.
    """
    return InWrapper(model) if getattr(model, "_wrapped_like", None) == "ddp" else model


def copy_as_plain(model: nn.Module) -> None:
    """Let `copy.deepcopy` of a sharded model, and of what holds it, give plain copies, as of DDP's module; every rank copies."""
    for part in model.modules():
        if isinstance(part, FSDPModule):
            cast(Any, type(part)).__deepcopy__ = plain_copy


def as_plain(value: Any) -> Any:
    """`value` with plain, whole copies in place of sharded models, in dicts, lists and tuples too: to be saved, or copied.

    Everything else is itself. Every rank comes here; one alone may inside `whole_on_each_rank`.
    """

    return map_tensors(lambda module: plain_copy(module) if _was_sharded(module) else module, value, nn.Module)


def to_trace(module: Any) -> Any:
    """`module`, or a plain, whole copy of a sharded one with the buffers that the module itself has: tracing runs a forward,
    which writes running statistics. Every rank comes here; one alone may inside `whole_on_each_rank`.
    """
    return plain_copy(module, {id(buffer): buffer for buffer in module.buffers()}) if _was_sharded(module) else module


def _was_sharded(module: Any) -> bool:
    """Whether a module is sharded, or a part of a model that is: while that is whole, hooks are all that a part has of it."""
    hooks = (hook for m in module.modules() for name in HOOKS for hook in vars(m).get(name, {}).values())
    return is_sharded(module) or any(map(is_of_sharding, hooks))


@torch.no_grad()
def zip_like(*iterables: Iterable[Any], target: int = 0) -> Iterator[tuple[Any, ...]]:
    """`zip(*iterables)` whose tensors are all laid out as those of one of them: sharded or whole.

    For loops that write the tensors of a model from those of another one, where one of the two is sharded. Entries may
    be tuples, as from `named_parameters()`. Every rank iterates.
    """
    for entries in zip(*iterables, strict=False):
        written = entries[target][-1] if isinstance(entries[target], tuple) else entries[target]
        place = functools.partial(shard_like, live=written) if isinstance(written, DTensor) else whole
        yield tuple(entry if at == target else map_tensors(place, entry) for at, entry in enumerate(entries))


@torch.no_grad()
def laid_out_like(value: Any, target: Any) -> Any:
    """`value` for `target.add_(value)` and its kin: sharded as `target` is, or whole where it is. Every rank comes here."""
    if isinstance(target, DTensor):
        return map_tensors(functools.partial(shard_like, live=target), value)
    return whole(value)
