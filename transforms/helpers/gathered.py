"""When the units of a sharded model are gathered, other than fully_shard decides it."""

from typing import Any

import torch
from torch import nn
from torch.distributed.fsdp import FSDPModule
from torch.utils._pytree import tree_leaves, tree_map_only

from .parameters import resharded
from .tensors import is_object, tensors_in


def in_backward() -> bool:
    """Whether a backward runs, which then is where a forward was called from: activation checkpointing."""
    return torch._C._current_graph_task_id() != -1


def reshard_after_evaluation(module: Any) -> None:
    """Shard `module` again after each forward without gradients, and after each before the first backward.

    fully_shard keeps the root gathered until a backward: `parameters()` then gives tensors that no optimizer knows,
    and weights that change in between are not seen by the next forward.
    """
    trains: list[bool] = []

    def reshard(_: nn.Module, __: Any, output: Any) -> None:
        if not trains:
            for tensor in tensors_in(output):
                if tensor.requires_grad:
                    tensor.register_hook(lambda _: trains.append(True))
        if not in_backward() and not (trains and torch.is_grad_enabled()):
            resharded(module)

    module.register_forward_hook(torch.compiler.disable(reshard))


def reshard_after_forward(module: Any) -> None:
    """Shard `module` again after each of its forwards, so that its parameters are always those that an optimizer knows.

    fully_shard's reshard_after_forward=True says the same, but counts for the root only from torch 2.8 on, and nothing
    after a forward that raised.
    """

    module._running_forwards = 0

    def count(*_: Any) -> None:
        module._running_forwards += 1

    def reshard(*_: Any) -> None:
        module._running_forwards = max(module._running_forwards - 1, 0)
        if module._running_forwards or in_backward():
            return
        if getattr(module, "_awaits_second_backward", False):  # needed for: create_graph
            return
        if module._get_fsdp_state()._training_state.name == "FORWARD" and hasattr(module, "reset_iter_state"):
            module.reset_iter_state()  # the forward raised; torch 2.13
        resharded(module)

    module.register_forward_pre_hook(torch.compiler.disable(count), prepend=True)
    module.register_forward_hook(torch.compiler.disable(reshard), always_call=True)


def return_no_views(unit: Any) -> None:
    """Copy views and parameters that `unit` returns, before any other hook sees them.

    fully_shard gathers and reduces by hooks on what a unit returns; an operation in place on a view drops them silently.
    The memory of a gathered parameter, and of a part of it, is freed when the unit shards again: reading it would crash.
    """

    def is_shared(tensor: torch.Tensor) -> bool:
        return tensor._is_view() or isinstance(tensor, nn.Parameter)

    def own(_: nn.Module, __: Any, output: Any) -> Any:
        for held in filter(is_object, tree_leaves(output)):
            for name, tensor in list(vars(held).items()):
                if isinstance(tensor, torch.Tensor) and is_shared(tensor):
                    setattr(held, name, tensor.clone())
        if any(map(is_shared, tensors_in(output))):
            return tree_map_only(torch.Tensor, lambda tensor: tensor.clone() if is_shared(tensor) else tensor, output)
        return output

    unit.register_forward_hook(torch.compiler.disable(own), prepend=True)


def enter_by_objects(unit: Any) -> None:
    """Let a backward enter `unit` also by tensors in objects of classes that torch does not look into.

    fully_shard gathers and reduces by hooks on what a unit returns, and finds them in collections and dataclasses alone: without
    one, no gradient comes to the parameters, and nothing says so.
    """
    state = unit._get_fsdp_state()
    register = state._register_pre_backward_hook

    def look_into(output: Any) -> Any:
        for held in filter(is_object, tree_leaves(output)) if torch.is_grad_enabled() else ():
            for tensor in tensors_in(held):
                if tensor.requires_grad:
                    tensor.register_hook(state._pre_backward)
        return register(output)

    state._register_pre_backward_hook = look_into


def allow_inference_first(module: Any) -> None:
    """Let the first forward of `module` run under inference_mode, and later ones train.

    A unit allocates what it is gathered into at its first gather. Tensors made in inference mode could never be written
    outside of it.
    """

    def allocate(*_: Any) -> None:
        handle.remove()
        if torch.is_inference_mode_enabled():
            with torch.inference_mode(False):
                for unit in module.modules():
                    if isinstance(unit, FSDPModule):
                        unit.unshard()
                        unit.reshard()

    handle = module.register_forward_pre_hook(torch.compiler.disable(allocate), prepend=True)
