"""Gradient clipping: every call, what it was given and the norm that it found."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import torch.nn.utils.clip_grad as clip_grad

from .after_import import after_import
from .patching import Function, wrap

if TYPE_CHECKING:
    from .recorder import Recorder


def install(recorder: Recorder) -> None:
    """Watch `torch.nn.utils` and, once it is imported, FSDP1's own method."""
    watch = _Watch(recorder)
    wrap(clip_grad, "clip_grad_norm_", watch.by_norm)
    wrap(clip_grad, "clip_grad_value_", watch.by_value)
    wrap(torch.nn.utils, "clip_grads_with_norm_", watch.with_norm)  # clip_grad has it under another name

    def fsdp1() -> None:
        from torch.distributed.fsdp import FullyShardedDataParallel

        wrap(FullyShardedDataParallel, "clip_grad_norm_", watch.fsdp1)

    after_import("torch.distributed.fsdp", fsdp1)


class _Watch:
    """Wraps the functions; a call from within another one is part of it."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._inside = False
        self._norm: torch.Tensor | None = None
        """What `clip_grads_with_norm_` was last called with."""

    def by_norm(self, original: Function) -> Function:
        def clip_grad_norm_(parameters: Any, max_norm: float, norm_type: float = 2.0, *args: Any, **kwargs: Any) -> Any:
            parameters = _listed(parameters)
            return self._around(
                parameters,
                {"kind": "norm", "through": "torch", "max_norm": float(max_norm), "norm_type": float(norm_type)},
                lambda: original(parameters, max_norm, norm_type, *args, **kwargs),
            )

        return clip_grad_norm_

    def by_value(self, original: Function) -> Function:
        def clip_grad_value_(parameters: Any, clip_value: float, *args: Any, **kwargs: Any) -> None:
            parameters = _listed(parameters)
            self._around(
                parameters,
                {"kind": "value", "through": "torch", "max_norm": float(clip_value), "norm_type": None},
                lambda: original(parameters, clip_value, *args, **kwargs),
            )

        return clip_grad_value_

    def with_norm(self, original: Function) -> Function:
        def clip_grads_with_norm_(
            parameters: Any, max_norm: float, total_norm: Any, foreach: bool | None = None
        ) -> None:
            parameters = _listed(parameters)

            def clip() -> torch.Tensor:
                original(parameters, max_norm, total_norm, foreach)
                gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
                # Exact mode hands out norms in float64.
                return total_norm.to(gradients[0].dtype) if gradients else total_norm

            # Plain and sharded parameters, and those of several meshes, are clipped one after the other with one norm.
            again = self._norm is total_norm and not self._inside
            self._norm = total_norm
            fields = {"kind": "norm", "through": "torch", "max_norm": float(max_norm), "norm_type": None}
            self._around(parameters, fields, clip, again)

        return clip_grads_with_norm_

    def fsdp1(self, original: Function) -> Function:
        def clip_grad_norm_(model: Any, max_norm: float, norm_type: float = 2.0) -> torch.Tensor:
            return self._around(
                list(model.parameters()),
                {"kind": "norm", "through": "fsdp1", "max_norm": float(max_norm), "norm_type": float(norm_type)},
                lambda: original(model, max_norm, norm_type),
            )

        return clip_grad_norm_

    def _around(self, parameters: list[torch.Tensor], fields: dict[str, Any], clip: Any, again: bool = False) -> Any:
        if self._inside:
            return clip()
        recorder = self._recorder
        recorder.before_clip(parameters)
        tensors = sum(parameter.grad is not None for parameter in parameters)
        self._inside = True
        try:
            norm = clip()
        finally:
            self._inside = False
        value = _number(norm) if isinstance(norm, torch.Tensor) else None
        recorder.clip(again, norm=value, tensors=tensors, parameters=parameters, **fields)
        return norm


def _listed(parameters: Any) -> list[torch.Tensor]:
    return [parameters] if isinstance(parameters, torch.Tensor) else list(parameters)


def _number(norm: Any) -> float | None:
    """The norm, read without a collective: null where this rank holds only a part of it."""
    if type(norm).__name__ == "DTensor":
        if any(placement.is_partial() for placement in norm.placements):
            return None
        norm = norm.to_local()
    return float(norm)
