"""FSDP1's MixedPrecision as a MixedPrecisionPolicy."""

from typing import Any

import torch
from torch import nn
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy


def precision_policy(mixed_precision: Any, is_root: bool) -> MixedPrecisionPolicy:
    """The policy of one unit for FSDP1's MixedPrecision, an object with the same attributes, or None.

    FSDP1 casts the inputs of the root by default, and those of other units only where cast_forward_inputs says so.
    buffer_dtype is no part of it: fully_shard leaves buffers alone.
    Raises NotImplementedError for keep_low_precision_grads.
    """
    if mixed_precision is None:
        return MixedPrecisionPolicy()
    if isinstance(mixed_precision, MixedPrecisionPolicy):
        return mixed_precision
    if getattr(mixed_precision, "keep_low_precision_grads", False):
        raise NotImplementedError("fully_shard has no keep_low_precision_grads: gradients have the dtype of their parameters")
    return MixedPrecisionPolicy(
        param_dtype=mixed_precision.param_dtype,
        reduce_dtype=mixed_precision.reduce_dtype,
        cast_forward_inputs=mixed_precision.cast_forward_inputs or (is_root and mixed_precision.cast_root_forward_inputs),
    )


def full_precision_units(
    model: nn.Module, chosen: list[tuple[nn.Module, dict[str, Any]]], mixed_precision: Any, ignored_modules: set[nn.Module]
) -> list[tuple[nn.Module, dict[str, Any]]]:
    """`chosen` with one more for each module that FSDP1 kept in full precision: BatchNorm, where a policy was given."""
    exact = {"mixed_precision": MixedPrecisionPolicy(param_dtype=torch.float32, output_dtype=mixed_precision.param_dtype)}
    classes = tuple(getattr(mixed_precision, "_module_classes_to_ignore", ()))
    kept = [m for m in model.modules() if isinstance(m, classes) and m not in ignored_modules and m is not model]
    given = dict(chosen)
    return [*((m, {**given.get(m, {}), **exact}) for m in kept), *(pair for pair in chosen if pair[0] not in kept)]


def learn_in_precision(module: Any) -> None:
    """Let what is frozen at the first forward of `module`, and learns later, have gradients of its own type.

    A unit takes the types of its gradients from the parameters that learn at the first forward (torch 2.13).
    """

    def update(*_: Any) -> None:
        for unit in module.modules():
            group = unit._get_fsdp_state()._fsdp_param_group if isinstance(unit, FSDPModule) else None
            if group and getattr(group, "_orig_dtype", 0) is None:
                group._init_mp_dtypes()

    module.register_forward_pre_hook(torch.compiler.disable(update))
