"""What gradient scalers do: scale, unscale, leave out steps, change the scale."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from .after_import import after_import
from .losses import UNSCALED
from .patching import Function, wrap

if TYPE_CHECKING:
    from .recorder import Recorder


def install(recorder: Recorder) -> None:
    """Watch `torch.amp.GradScaler` and, once it is imported, FSDP1's ShardedGradScaler."""
    watch = _Watch(recorder)
    watch.methods_of(torch.amp.grad_scaler.GradScaler, ("scale", "unscale_", "step", "update"))

    def sharded() -> None:
        from torch.distributed.fsdp.sharded_grad_scaler import ShardedGradScaler

        own = vars(ShardedGradScaler)
        watch.methods_of(ShardedGradScaler, [name for name in ("scale", "unscale_", "step", "update") if name in own])

    after_import("torch.distributed.fsdp.sharded_grad_scaler", sharded)


class _Watch:
    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._wrappers: dict[str, Callable[[Function], Function]] = {
            "scale": self._scale,
            "unscale_": self._unscale,
            "step": self._step,
            "update": self._update,
        }

    def methods_of(self, cls: type, names: Any) -> None:
        for name in names:
            wrap(cls, name, self._wrappers[name])

    def _event(self, scaler: Any, action: str, step: int, **fields: Any) -> None:
        name = {"class": type(scaler).__name__}
        self._recorder.journal.write("scaler", step=step, action=action, **name, enabled=True, **fields)

    def _scale(self, original: Function) -> Function:
        def scale(scaler: Any, outputs: Any) -> Any:
            result = original(scaler, outputs)
            if scaler.is_enabled():
                for before, after in _pairs(outputs, result):
                    if after is not before:
                        setattr(after, UNSCALED, before.detach())
                if not self._recorder.scaled:
                    self._recorder.scaled = True
                    self._event(scaler, "scale", self._recorder.step, scale=scaler.get_scale())
            return result

        return scale

    def _unscale(self, original: Function) -> Function:
        def unscale_(scaler: Any, optimizer: Any) -> Any:
            result = original(scaler, optimizer)
            if scaler.is_enabled():
                found = scaler._per_optimizer_states[id(optimizer)]["found_inf_per_device"].values()
                infinite = any(bool(value.item()) for value in found)
                index = self._recorder.index_of(optimizer)
                self._event(scaler, "unscale", self._recorder.step, optimizer=index, found_inf=infinite)
            return result

        return unscale_

    def _step(self, original: Function) -> Function:
        def step(scaler: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
            before = self._recorder.step
            result = original(scaler, optimizer, *args, **kwargs)
            if scaler.is_enabled():
                skipped = self._recorder.step == before
                if skipped:
                    self._recorder.skipped_step(optimizer)
                self._event(scaler, "step", before, optimizer=self._recorder.index_of(optimizer), skipped=skipped)
            return result

        return step

    def _update(self, original: Function) -> Function:
        def update(scaler: Any, *args: Any, **kwargs: Any) -> None:
            original(scaler, *args, **kwargs)
            if scaler.is_enabled():
                # It belongs to the step that has just ended, unless there was none.
                recorder = self._recorder
                ended = recorder.step - 1 if recorder.micro == 0 and recorder.step else recorder.step
                self._event(scaler, "update", ended, scale=scaler.get_scale())

        return update


def _pairs(outputs: Any, results: Any) -> list[tuple[torch.Tensor, torch.Tensor]]:
    if isinstance(outputs, torch.Tensor):
        return [(outputs, results)]
    if isinstance(outputs, (list, tuple)):
        return [pair for before, after in zip(outputs, results, strict=True) for pair in _pairs(before, after)]
    return []
