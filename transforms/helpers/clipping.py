"""Gradient norms and clipping over plain and sharded parameters."""

import functools
import math
from collections import defaultdict
from collections.abc import Iterable
from typing import Any, cast

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor

from .parameters import resharded
from .units import sharded_behind
from .unsynced import with_unsynced_gradients


def clip_grad_norm(
    parameters: torch.Tensor | Iterable[torch.Tensor],
    max_norm: float,
    norm_type: float = 2.0,
    error_if_nonfinite: bool = False,
    foreach: bool | None = None,
) -> torch.Tensor:
    """`torch.nn.utils.clip_grad_norm_` for plain and sharded parameters, also over several meshes. Returns a plain tensor.

    Plain parameters count with this rank's own gradient: reduce it first if it is not the same on all ranks. So do sharded
    ones while their gradients wait to be reduced, as in DDP.
    """
    parameters = [parameters] if isinstance(parameters, torch.Tensor) else list(parameters)
    parameters = with_unsynced_gradients(parameters)  # needed for: gradient_sync
    grads = [p.grad for p in parameters if p.grad is not None]
    if not any(isinstance(grad, DTensor) for grad in grads):
        return torch.nn.utils.clip_grad_norm_(parameters, max_norm, norm_type, error_if_nonfinite, foreach)
    total = _norm_over_meshes(grads, norm_type, error_if_nonfinite, foreach)
    for group in _by_mesh(parameters):
        torch.nn.utils.clip_grads_with_norm_(group, max_norm, total, foreach)
    return total.to(functools.reduce(torch.promote_types, [grad.dtype for grad in grads]))


def clip_model_grad_norm(model: Any, *args: Any, **kwargs: Any) -> torch.Tensor:
    """FSDP1's `model.clip_grad_norm_(max_norm, norm_type)`. Returns a plain tensor; a model's own method is called as it is.

    FSDP1 showed no gradients of frozen parameters: those from before they were frozen do not count.
    """
    sharded = sharded_behind(model, "clip_grad_norm_")
    if sharded is None or hasattr(model, "clip_grad_norm_"):
        return model.clip_grad_norm_(*args, **kwargs)
    return clip_grad_norm([p for p in resharded(sharded).parameters() if p.requires_grad], *args, **kwargs)


def clip_grad_value(parameters: torch.Tensor | Iterable[torch.Tensor], clip_value: float, foreach: bool | None = None) -> None:
    """`torch.nn.utils.clip_grad_value_` for plain and sharded parameters, also over several meshes."""
    parameters = [parameters] if isinstance(parameters, torch.Tensor) else list(parameters)
    parameters = with_unsynced_gradients(parameters)  # needed for: gradient_sync
    if not any(isinstance(p, DTensor) for p in parameters):
        torch.nn.utils.clip_grad_value_(parameters, clip_value, foreach)
        return
    for group in _by_mesh([p for p in parameters if p.grad is not None]):
        torch.nn.utils.clip_grad_value_(group, clip_value, foreach)


def total_norm_of(
    tensors: torch.Tensor | Iterable[torch.Tensor],
    norm_type: float = 2.0,
    error_if_nonfinite: bool = False,
    foreach: bool | None = None,
) -> torch.Tensor:
    """`torch.nn.utils.get_total_norm` for plain and sharded tensors, also over several meshes. Returns a plain tensor."""
    tensors = [tensors] if isinstance(tensors, torch.Tensor) else list(tensors)
    if not any(isinstance(tensor, DTensor) for tensor in tensors):
        return torch.nn.utils.get_total_norm(tensors, norm_type, error_if_nonfinite, foreach)
    total = _norm_over_meshes(tensors, norm_type, error_if_nonfinite, foreach)
    return total.to(functools.reduce(torch.promote_types, [tensor.dtype for tensor in tensors]))


@torch.no_grad()
def _norm_over_meshes(
    tensors: list[torch.Tensor], norm_type: float, error_if_nonfinite: bool, foreach: bool | None
) -> torch.Tensor:
    norms = []
    for group in _by_mesh(tensors):
        if norm_type == math.inf and isinstance(group[0], DTensor):
            norm = _largest(cast(list[DTensor], group))
        elif any(tensor.dtype in (torch.float16, torch.bfloat16) for tensor in group):  # each rank's part would be rounded
            each = [torch.linalg.vector_norm(tensor, norm_type, dtype=torch.float32) for tensor in group]
            norm = torch.linalg.vector_norm(torch.stack(each), norm_type)
        else:
            norm = torch.nn.utils.get_total_norm(group, norm_type, foreach=foreach)
        if isinstance(norm, DTensor):  # gradients that are offloaded lie on the CPU, where their mesh cannot reduce
            norm = cast(DTensor, norm.to(norm.device_mesh.device_type)).full_tensor()
        norms.append(norm.to(tensors[0].device))
    total = torch.linalg.vector_norm(torch.stack(norms), norm_type)
    if error_if_nonfinite and not total.isfinite():
        raise RuntimeError(
            f"The total norm of order {norm_type} for gradients from `parameters` is non-finite, so it cannot be clipped."
        )
    return total


def _largest(tensors: list[DTensor]) -> torch.Tensor:
    """The largest absolute value in sharded tensors of one mesh, of which a rank may have no element."""
    dtype = functools.reduce(torch.promote_types, [tensor.dtype for tensor in tensors])
    mesh = tensors[0].device_mesh
    parts = [cast(DTensor, tensor.to(mesh.device_type)).to_local() for tensor in tensors]
    found = torch.stack([(part.abs().max() if part.numel() else part.new_zeros(())).to(dtype) for part in parts]).max()
    for dimension in range(mesh.ndim):
        dist.all_reduce(found, dist.ReduceOp.MAX, mesh.get_group(dimension))
    return found


def _by_mesh(tensors: list[torch.Tensor]) -> list[list[torch.Tensor]]:
    """`tensors` in lists that torch's foreach functions take: one for each mesh, one for plain tensors."""
    groups = defaultdict(list)
    for tensor in tensors:
        groups[tensor.device_mesh if isinstance(tensor, DTensor) else None].append(tensor)
    return list(groups.values())
