"""Hooks on parameters that never fire: fully_shard makes other parameters, and assigns their gradients itself."""

from __future__ import annotations

import weakref
from dataclasses import dataclass
from typing import Any

import torch

from .patching import Function, wrap
from .places import called_by_helper, called_by_user, user_place
from .tripwires import Tripwires

_KINDS = ("register_hook", "register_post_accumulate_grad_hook")


@dataclass
class _Hook:
    parameter: weakref.ref[torch.Tensor]
    name: str
    place: str
    fired: bool = False
    removed: bool = False
    told: bool = False


def install(wires: Tripwires) -> None:
    watch = _Watch(wires)
    for name in _KINDS:
        wrap(torch.Tensor, name, watch.registering(name))
    wires.recorder.after_step.append(watch.look)


class _Watch:
    def __init__(self, wires: Tripwires) -> None:
        self._wires = wires
        self._hooks: list[_Hook] = []

    def registering(self, name: str) -> Any:
        def around(original: Function) -> Function:
            def register(tensor: torch.Tensor, hook: Function) -> Any:
                if not (isinstance(tensor, torch.nn.Parameter) and called_by_user()) or called_by_helper():
                    return original(tensor, hook)
                noted = _Hook(weakref.ref(tensor), name, user_place(self._wires.root))
                self._hooks.append(noted)

                def fired(*args: Any) -> Any:
                    noted.fired = True
                    return hook(*args)

                handle = original(tensor, fired)
                remove = handle.remove

                def removing() -> None:
                    noted.removed = True
                    remove()

                handle.remove = removing
                return handle

            return register

        return around

    def look(self) -> None:
        """After a step: a hook whose parameter has been given a gradient, or is no parameter any more, was due."""
        waiting = [hook for hook in self._hooks if not (hook.fired or hook.removed or hook.told)]
        trained = self._wires.recorder.trained() if waiting else {}
        for hook in waiting if trained else []:
            parameter = hook.parameter()
            replaced = parameter is None or id(parameter) not in trained
            if replaced or (type(parameter).__name__ == "DTensor" and parameter is not None and parameter.grad is not None):
                hook.told = True
                why = "fully_shard has replaced the parameter" if replaced else "fully_shard sets gradients itself"
                text = f"registers a hook ({hook.name}) that never fires: {why}; do after the backward pass what it did"
                self._wires.fire("hook", "FS704", text, hook.place)
