"""Parameters that are edited in place, and FSDP1's flat parameters."""

from typing import Any

import torch
from torch import nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor, Replicate


def changes() -> int:
    """How often sharded tensors have been written, the same on all ranks: what was gathered before is old."""
    return getattr(DTensor, "_changes", 0)


def note_change(*_: Any) -> None:
    """A sharded tensor is written. All ranks come here."""
    DTensor._changes = changes() + 1  # pyright: ignore[reportAttributeAccessIssue]
    for group in getattr(DTensor, "_gathered_until_change", ()):  # needed for: autograd_grad
        if group._training_state.name == "IDLE":
            group.reshard()


def reshard_at_change(groups: list[Any]) -> None:
    """Let parameters that are gathered outside of forwards and backwards be sharded again when a sharded tensor is written."""
    DTensor._gathered_until_change = {*getattr(DTensor, "_gathered_until_change", ()), *groups}  # pyright: ignore[reportAttributeAccessIssue]


def resharded(model: Any) -> Any:
    """`model`, with its sharded parameters registered: `for p in resharded(model).parameters(): p.mul_(0.9)`.

    After a forward without backward, fully_shard leaves gathered copies registered. They have no gradients, and what is
    written to them is lost at the next gather. Anything that is not sharded is returned as it is.
    """
    if isinstance(model, nn.Module):
        for module in model.modules():
            if isinstance(module, FSDPModule):
                module.reshard()
    return model


def assign_data(parameter: torch.Tensor, value: torch.Tensor) -> None:
    """`parameter.data = value`, which changes nothing when the parameter is sharded: this rank's part of it is written.

    `value` has the shape of the whole parameter. Raises ValueError if shape or dtype would change.
    """
    if not isinstance(parameter, DTensor):
        parameter.data = value
        return
    if value.shape != parameter.shape or value.dtype != parameter.dtype:
        raise ValueError(
            f"a sharded parameter of {tuple(parameter.shape)}, {parameter.dtype} cannot become "
            f"{tuple(value.shape)}, {value.dtype}: change it before fully_shard, or use model.to(dtype)"
        )
    write_shard(parameter, value)


@torch.no_grad()
def write_shard(sharded: DTensor, value: torch.Tensor) -> None:
    """Copy this rank's part of `value`, a whole tensor or one sharded in any way, into `sharded`."""
    note_change()
    if not isinstance(value, DTensor):
        mesh = sharded.device_mesh
        value = DTensor.from_local(value.detach().to(sharded.device), mesh, [Replicate()] * mesh.ndim, run_check=False)
        value = value.redistribute(mesh, sharded.placements)  # takes this rank's part, without communication
    sharded.copy_(value)


def handle_parameters(model: nn.Module) -> list[Any]:
    """The parameters that sharding manages, in place of `handle.flat_param` of FSDP1's handles.

    For a sharded model its own sharded parameters, one tensor each; for FSDP1 the flat parameters.
    """
    old = [
        handle.flat_param
        for module in model.modules()
        for handle in [vars(module).get("_handle"), *vars(module).get("_handles", [])]
        if hasattr(handle, "flat_param")
    ]
    return old + [p for p in resharded(model).parameters() if isinstance(p, DTensor)]
