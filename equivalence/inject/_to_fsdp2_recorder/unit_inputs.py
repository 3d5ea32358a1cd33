"""The inputs of named modules pass through an autograd node, as those of fully_shard's units do.

fully_shard puts a node on the inputs of each unit (torch 2.13, FSDPParamGroup._register_post_backward_hook), to know
when its backward pass is over. Where several units use one tensor, such as the output of an encoder, each node adds up
its unit's gradients first: the same sum in another order. With the same nodes, a run without fully_shard makes the same
sums.
"""

from __future__ import annotations

import weakref
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch import nn
from torch.nn.modules.module import register_module_forward_pre_hook

from .models import modules_with_paths


def install(paths: tuple[str, ...]) -> None:
    """Put the nodes in place at the first forward pass of each model that has modules of these canonical paths."""
    known: weakref.WeakSet[nn.Module] = weakref.WeakSet()

    def first_seen(module: nn.Module, args: Any) -> None:
        # Forward passes begin at the outermost module, which brings all that it holds.
        if module in known:
            return
        taken: set[str] = set()
        for path, inner in modules_with_paths(module):
            known.add(inner)
            if path in paths and path not in taken:
                taken.add(path)
                inner.register_forward_pre_hook(_through_node, with_kwargs=True)

    register_module_forward_pre_hook(first_seen)


class _Node(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, *inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return inputs

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return gradients


def _through_node(module: nn.Module, args: Any, kwargs: Any) -> tuple[Any, Any]:
    if not torch.is_grad_enabled():
        return args, kwargs
    leaves, form = pytree.tree_flatten((args, kwargs))
    places = [i for i, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor) and leaf.requires_grad]
    if places:
        for place, output in zip(places, _Node.apply(*(leaves[i] for i in places)), strict=True):
            leaves[place] = output
    return pytree.tree_unflatten(leaves, form)
