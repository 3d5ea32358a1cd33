"""Loss scaling for plain and sharded gradients."""

from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor


def sharded_grad_scaler(
    device: str = "cuda",
    init_scale: float = 2.0**16,
    backoff_factor: float = 0.5,
    growth_factor: float = 2.0,
    growth_interval: int = 2000,
    enabled: bool = True,
    process_group: dist.ProcessGroup | None = None,
) -> torch.amp.GradScaler:
    """FSDP1's ShardedGradScaler with its arguments, for plain and sharded gradients in any mixture."""
    scaler = AllRanksGradScaler(device, init_scale, growth_factor, backoff_factor, growth_interval, enabled)
    scaler.process_group = process_group
    return scaler


class AllRanksGradScaler(torch.amp.GradScaler):
    """A GradScaler that skips a step on all ranks if one of them has a gradient that is not finite."""

    process_group: dist.ProcessGroup | None = None

    def _unscale_grads_(
        self, optimizer: Any, inv_scale: torch.Tensor, found_inf: torch.Tensor, allow_fp16: bool
    ) -> dict[torch.device, torch.Tensor]:
        local = [_with_local_gradient(p) for group in optimizer.param_groups for p in group["params"]]
        of_local: Any = SimpleNamespace(param_groups=[{"params": local}])
        found = super()._unscale_grads_(of_local, inv_scale, found_inf, True) or {found_inf.device: found_inf}
        if dist.is_initialized():
            for flag in found.values():
                reduced = flag.to(self._device)
                dist.all_reduce(reduced, dist.ReduceOp.MAX, self.process_group)
                flag.copy_(reduced)
        return found


def _with_local_gradient(parameter: torch.Tensor) -> torch.Tensor:
    """A stand-in whose gradient is this rank's part of the parameter's, in the same memory."""
    if not isinstance(parameter.grad, DTensor):
        return parameter
    stand_in = parameter.grad.to_local().detach()
    stand_in.grad = parameter.grad.to_local()
    return stand_in


def unscale_by_layout() -> None:
    """Let GradScaler take optimizers over plain and sharded parameters: torch's functions take one kind at a time."""
    original = torch.amp.GradScaler._unscale_grads_
    if hasattr(original, "_by_layout"):
        return

    def unscale(scaler: Any, optimizer: Any, *args: Any) -> dict[torch.device, torch.Tensor]:
        parameters = [p for group in optimizer.param_groups for p in group["params"] if p.grad is not None]
        sharded = [p for p in parameters if isinstance(p.grad, DTensor)]
        plain = [p for p in parameters if not isinstance(p.grad, DTensor)]
        if not sharded or not plain:
            return original(scaler, optimizer, *args)
        found: dict[torch.device, torch.Tensor] = {}
        for kind in (sharded, plain):  # both write their findings into the same tensors
            of_kind: Any = SimpleNamespace(param_groups=[{"params": kind}])
            found |= original(scaler, of_kind, *args)
        return found

    unscale._by_layout = True  # type: ignore[attr-defined]
    torch.amp.GradScaler._unscale_grads_ = unscale  # type: ignore[method-assign]
