"""The losses: what `backward` is called on, as it was before a gradient scaler multiplied it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from .patching import Function, wrap

if TYPE_CHECKING:
    from .recorder import Recorder

# Set on what a scaler returns: its value before scaling.
UNSCALED = "_to_fsdp2_unscaled"


def install(recorder: Recorder) -> None:
    """Wrap `torch.autograd.backward`, which `Tensor.backward` and everything built on it call."""
    depth = [0]

    def around(original: Function) -> Function:
        def backward(tensors: Any, *args: Any, **kwargs: Any) -> None:
            # Reentrant activation checkpointing calls backward from within backward.
            outermost = depth[0] == 0
            if outermost:
                recorder.before_backward()
                for index, tensor in enumerate([tensors] if isinstance(tensors, torch.Tensor) else tensors):
                    unscaled = getattr(tensor, UNSCALED, None)
                    value = tensor if unscaled is None else unscaled
                    recorder.loss(_local(value.detach()), unscaled is not None, index)
            depth[0] += 1
            try:
                original(tensors, *args, **kwargs)
            finally:
                depth[0] -= 1
            if outermost:
                recorder.after_backward()

        return backward

    wrap(torch.autograd, "backward", around)


def _local(value: torch.Tensor) -> torch.Tensor:
    # A loss that is a DTensor is read where it is: gathering it would be a collective of ours.
    to_local = getattr(value, "to_local", None)
    return value.clone() if to_local is None else to_local().clone()
