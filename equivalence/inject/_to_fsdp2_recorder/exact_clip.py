"""A gradient norm that does not depend on how gradients are sharded.

Clipping adds squares in an order that differs between DDP, FSDP1 and FSDP2; once the threshold is reached, the last bit
of the norm is in every weight. Here squares are added in float64, so that the norm has the same float32 bits.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.utils.clip_grad as clip_grad

from .after_import import after_import
from .collectives import traffic
from .patching import Function, wrap

WAS_PARTIAL = "_to_fsdp2_partial"
"""Set on norms that torch itself would return as sums that each rank has a part of."""


def install() -> None:
    """Replace the norm under `torch.nn.utils.clip_grad_norm_` and `get_total_norm`, and FSDP1's clipping."""
    wrap(clip_grad, "_get_total_norm", _exact_total_norm)
    wrap(torch.nn.utils, "get_total_norm", _precise_total_norm)  # the same function under another name
    wrap(torch.nn.utils, "clip_grads_with_norm_", _rounded_norm)
    after_import("torch.distributed.fsdp", _install_fsdp1)


def _install_fsdp1() -> None:
    from torch.distributed.fsdp import FullyShardedDataParallel

    wrap(FullyShardedDataParallel, "clip_grad_norm_", _exact_fsdp1_clip)


def _precise_total_norm(original: Function) -> Function:
    """In float64: code that combines the norms of several groups would round each of them, and DDP's one norm is rounded once."""
    return _exact_total_norm(original, torch.float64)


def _rounded_norm(original: Function) -> Function:
    def clip_grads_with_norm_(parameters: Any, max_norm: float, total_norm: Any, *args: Any, **kwargs: Any) -> None:
        parameters = [parameters] if isinstance(parameters, torch.Tensor) else list(parameters)
        dtypes = [parameter.grad.dtype for parameter in parameters if parameter.grad is not None]
        if dtypes and isinstance(total_norm, torch.Tensor) and total_norm.dtype == torch.float64:
            total_norm = total_norm.to(dtypes[0])
        original(parameters, max_norm, total_norm, *args, **kwargs)

    return clip_grads_with_norm_


def _exact_total_norm(original: Function, dtype: torch.dtype | None = None) -> Function:
    def total_norm(
        tensors: torch.Tensor | Iterable[torch.Tensor],
        norm_type: float = 2.0,
        error_if_nonfinite: bool = False,
        foreach: bool | None = None,
    ) -> torch.Tensor:
        tensors = [tensors] if isinstance(tensors, torch.Tensor) else list(tensors)
        sharded = [tensor for tensor in tensors if _is_dtensor(tensor)]
        if not tensors or (sharded and len(sharded) < len(tensors)):
            return original(tensors, norm_type, error_if_nonfinite, foreach)
        norm_type = float(norm_type)
        total = _combined(_sharded_sums(sharded, norm_type) if sharded else [_power_sum(tensors, norm_type)], norm_type)
        result = _root(total, norm_type).to(dtype or tensors[0].dtype)
        _check_finite(result, norm_type, error_if_nonfinite)
        return _replicated(result, sharded[0]) if sharded else result

    return total_norm


def _exact_fsdp1_clip(original: Function) -> Function:
    @torch.no_grad()
    def clip_grad_norm_(self: Any, max_norm: float, norm_type: float = 2.0) -> torch.Tensor:
        handles = self._all_handles
        if all(not handle.uses_sharded_strategy for handle in handles):
            return original(self, max_norm, norm_type)
        norm_type = float(norm_type)
        sharded: dict[int, torch.Tensor] = {}
        for handle in handles:
            if handle.uses_sharded_strategy:
                parameters = handle.flat_param._params if handle._use_orig_params else [handle.flat_param]
                sharded.update((id(parameter), parameter) for parameter in parameters)
        whole = [parameter for parameter in self.parameters() if id(parameter) not in sharded]
        gradients = [p.grad for p in [*sharded.values(), *whole] if p.grad is not None]
        total = _power_sum([p.grad for p in sharded.values() if p.grad is not None], norm_type)
        total = _all_reduced(total.to(self.compute_device), norm_type, self.process_group)
        total = _combined([total, _power_sum([p.grad for p in whole if p.grad is not None], norm_type)], norm_type)
        norm = _root(total, norm_type).float()
        # FSDP1 rounds the coefficient to the gradient's dtype, torch.nn.utils does not.
        coefficient = torch.clamp(float(max_norm) / (norm + 1e-6), max=1.0)
        for gradient in gradients:
            gradient.mul_(coefficient.to(gradient.device, gradient.dtype))
        dtypes = [gradient.dtype for gradient in gradients]
        return norm.to(functools.reduce(torch.promote_types, dtypes) if dtypes else norm.dtype)

    return clip_grad_norm_


def _power_sum(tensors: Iterable[torch.Tensor], norm_type: float) -> torch.Tensor:
    """Sum of |x|**p in float64; the largest |x| for the infinity norm."""
    total: torch.Tensor | None = None
    for tensor in tensors:
        values = tensor.detach().double().abs()
        if values.numel() == 0:
            continue
        part = values.max() if math.isinf(norm_type) else values.pow(norm_type).sum()
        total = part if total is None else _join(norm_type)(total, part)
    return torch.zeros((), dtype=torch.float64) if total is None else total


def _sharded_sums(tensors: list[Any], norm_type: float) -> list[torch.Tensor]:
    """One sum for each set of tensors with the same mesh and placements, reduced over its sharded dimensions."""
    from torch.distributed.tensor import Partial, Replicate

    alike: dict[Any, list[Any]] = {}
    for tensor in tensors:
        if any(isinstance(placement, Partial) for placement in tensor.placements):
            tensor = tensor.redistribute(placements=[Replicate()] * len(tensor.placements))
        alike.setdefault((tensor.device_mesh, tuple(p.is_shard() for p in tensor.placements)), []).append(tensor)
    sums = []
    for (mesh, is_sharded), members in alike.items():
        total = _power_sum([member.to_local() for member in members], norm_type).to(members[0].device)
        for dimension, sharded in enumerate(is_sharded):
            if sharded:
                total = _all_reduced(total, norm_type, mesh.get_group(dimension))
        sums.append(total)
    return sums


def _all_reduced(total: torch.Tensor, norm_type: float, group: Any) -> torch.Tensor:
    total = total.clone()
    op = dist.ReduceOp.MAX if math.isinf(norm_type) else dist.ReduceOp.SUM
    with traffic.silent():
        dist.all_reduce(total, op=op, group=group)
    return total


def _combined(totals: list[torch.Tensor], norm_type: float) -> torch.Tensor:
    result = totals[0]
    for total in totals[1:]:
        result = _join(norm_type)(result, total.to(result.device))
    return result


def _join(norm_type: float) -> Callable[[torch.Tensor, torch.Tensor], torch.Tensor]:
    return torch.maximum if math.isinf(norm_type) else torch.add


def _root(total: torch.Tensor, norm_type: float) -> torch.Tensor:
    return total if math.isinf(norm_type) else total.pow(1.0 / norm_type)


def _check_finite(norm: torch.Tensor, norm_type: float, wanted: bool) -> None:
    if wanted and not torch.isfinite(norm):
        raise RuntimeError(
            f"the total norm of order {norm_type} of the gradients is {norm.item()}, so they are not clipped"
        )


def _replicated(norm: torch.Tensor, like: Any) -> torch.Tensor:
    """torch returns a DTensor for gradients that are DTensors, and scripts call `.full_tensor()` on it."""
    from torch.distributed.tensor import DTensor, Replicate

    placements = [Replicate()] * like.device_mesh.ndim
    result = DTensor.from_local(norm.to(like.device), like.device_mesh, placements, run_check=False)
    sizes = zip(like.placements, like.device_mesh.shape, strict=True)
    setattr(result, WAS_PARTIAL, any(not placement.is_replicate() and size > 1 for placement, size in sizes))
    return result


def _is_dtensor(tensor: torch.Tensor) -> bool:
    return type(tensor).__name__ == "DTensor"
