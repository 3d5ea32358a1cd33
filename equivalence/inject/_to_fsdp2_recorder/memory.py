"""Peak memory, and what autograd keeps for the backward pass."""

from __future__ import annotations

import resource
import sys
from typing import Any

import torch

from .models import Model


def peaks() -> dict[str, int | None]:
    """High-water marks of the process so far, in bytes."""
    resident = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    has_cuda = torch.cuda.is_available() and torch.version.cuda is not None
    return {
        "rss_peak": resident if sys.platform == "darwin" else resident * 1024,
        "cuda_peak": torch.cuda.max_memory_allocated() if has_cuda else None,
    }


class SavedForBackward:
    """Counts, during one step, the bytes of the tensors that autograd keeps: what activation checkpointing saves.

    Checkpointed regions install hooks of their own inside ours, so what they do not keep is not seen here.
    """

    def __init__(self) -> None:
        self._hooks: Any = None
        self._bytes: dict[int, int] = {}
        self._most = 0

    def start(self, models: list[Model]) -> None:
        """Count from now on, unless a model is compiled: hooks from Python would make it compile anew."""
        if any(model.describe()["compiled"] for model in models):
            return
        self._hooks = torch.autograd.graph.saved_tensors_hooks(self._keep, lambda kept: kept)
        self._hooks.__enter__()

    def take(self) -> int | None:
        """Stop counting; the most bytes that were kept for a backward pass, or None if nothing was counted."""
        if self._hooks is None:
            return None
        self._hooks.__exit__(None, None, None)
        self._hooks = None
        return self._most

    def before_backward(self) -> None:
        """Everything that is kept now is alive, so that no address stands for two storages."""
        self._most = max(self._most, sum(self._bytes.values()))

    def after_backward(self) -> None:
        """What was kept has been released; the next micro-step starts from nothing."""
        self._bytes.clear()

    def _keep(self, tensor: torch.Tensor) -> torch.Tensor:
        base = tensor if tensor._base is None else tensor._base
        if not isinstance(base, torch.nn.Parameter):
            self._count(tensor)
        # Keeping the tensor itself would tie an output to its own graph for ever.
        return tensor.detach()

    def _count(self, tensor: torch.Tensor) -> None:
        try:
            storage = tensor.untyped_storage()
            self._bytes[storage.data_ptr()] = storage.nbytes()
        except (NotImplementedError, RuntimeError):
            return  # a tensor without storage of its own, such as a DTensor: its local part is seen as well
