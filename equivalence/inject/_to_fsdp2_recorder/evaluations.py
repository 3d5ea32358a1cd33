"""What models answer in eval mode: the metrics that scripts print come from it, and no training shows it."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from .models import WRAPPER_COMPONENTS, is_ddp, is_fsdp1
from .patching import Function, wrap
from .sketch import sketch

if TYPE_CHECKING:
    from .recorder import Recorder

MOST_CALLS = 256
MOST_ELEMENTS = 1 << 20
"""Of one output; logits of a large vocabulary would take seconds."""


def install(recorder: Recorder) -> None:
    """Watch the modules that scripts put into eval mode."""
    global _watch
    _watch = _Watch(recorder)
    wrap(nn.Module, "train", _watch.mode)


class _Watch:
    """Hooks on the modules that a script itself calls `eval` on, and on what they wrap: it may call either."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._hooked: weakref.WeakSet[nn.Module] = weakref.WeakSet()
        self._setting = False
        self._running = 0
        self._summoned = False
        self._step = self._calls = 0

    def __deepcopy__(self, memo: Any) -> _Watch:
        """Hooks go along when a module is copied."""
        return self

    def __reduce__(self) -> Any:
        """And when one is sent to a process that `mp.spawn` starts, whose own recorder takes over."""
        return _own_watch, ()

    def mode(self, original: Function) -> Function:
        def train(module: nn.Module, mode: bool = True) -> nn.Module:
            if mode or self._setting:
                return original(module, mode)
            self._setting = True
            try:
                result = original(module, mode)
            finally:
                self._setting = False
            for inner in _unwrapped(module):
                self._hook(inner)
            return result

        return train

    def _hook(self, module: nn.Module) -> None:
        # A hook from Python would make a compiled model compile anew.
        if module in self._hooked or "_orig_mod" in module._modules or isinstance(module, torch.jit.ScriptModule):
            return
        self._hooked.add(module)
        module.register_forward_pre_hook(self.before)
        module.register_forward_hook(self.after, always_call=True)

    def before(self, module: nn.Module, args: Any) -> None:
        if torch.compiler.is_compiling():
            return
        if not self._running and not module.training:
            # Before the pass: one that goes through a unit ends with that unit at rest.
            self._summoned = any(map(_is_summoned, module.modules()))
        self._running += 1

    def after(self, module: nn.Module, args: Any, output: Any) -> None:
        if torch.compiler.is_compiling():
            return
        self._running -= 1
        # A frozen layer in the middle of a model that trains is no evaluation.
        evaluates = not module.training and (not torch.is_grad_enabled() or bool(module._modules))
        if self._running or not evaluates or output is None:
            return
        recorder = self._recorder
        if recorder.step != self._step:
            self._step, self._calls = recorder.step, 0
        if self._calls < MOST_CALLS:
            fields = {"class": type(module).__name__, "summoned": self._summoned}
            recorder.evaluation(self._calls, fields, lambda: list(_sketches(output)))
        self._calls += 1


_watch: _Watch | None = None


def _own_watch() -> _Watch | None:
    return _watch


def _is_summoned(module: nn.Module) -> bool:
    """Whether FSDP1's summon_full_params holds the module's parameters, in their own precision."""
    return is_fsdp1(module) and getattr(getattr(module, "training_state", None), "name", "") == "SUMMON_FULL_PARAMS"


def _unwrapped(module: nn.Module) -> Iterator[nn.Module]:
    """The module, and what it wraps, from the outside in."""
    yield module
    for key in (*WRAPPER_COMPONENTS, "module") if is_ddp(module) else WRAPPER_COMPONENTS:
        inner = module._modules.get(key)
        if inner is not None:
            yield from _unwrapped(inner)


def _sketches(output: Any) -> Iterator[dict[str, Any]]:
    for tensor in _tensors(output):
        if type(tensor).__name__ == "DTensor" or tensor.numel() == 0 or tensor.is_sparse:
            continue
        fields = {"shape": list(tensor.shape), "dtype": str(tensor.dtype).removeprefix("torch.")}
        yield {**fields, **sketch(tensor.detach().reshape(-1)[:MOST_ELEMENTS])}


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, dict):
        for item in value.values():
            yield from _tensors(item)
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _tensors(item)
