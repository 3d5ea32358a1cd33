"""Replace functions of torch so that every module of torch that has taken them by name sees the replacement."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any

Function = Callable[..., Any]


def wrap(owner: Any, name: str, around: Callable[[Function], Function]) -> None:
    """Replace `owner.name` by `around(original)`; a name that this version of torch lacks is left out.

    Where `owner` is a module, other modules of torch that imported the same object under the same name follow.
    """
    original = getattr(owner, name, None)
    if original is None:
        return
    replacement = around(original)
    functools.update_wrapper(replacement, original)
    if isinstance(owner, type):
        static = isinstance(vars(owner).get(name), staticmethod)
        setattr(owner, name, staticmethod(replacement) if static else replacement)
        return
    setattr(owner, name, replacement)
    for module_name, module in list(sys.modules.items()):
        if module_name.split(".")[0] == "torch" and vars(module).get(name) is original:
            setattr(module, name, replacement)


def changed_arguments(change: Callable[[dict[str, Any]], Any]) -> Callable[[Function], Function]:
    """For `wrap`: call the original with keyword arguments that `change` has edited in place."""

    def around(original: Function) -> Function:
        def call(*args: Any, **kwargs: Any) -> Any:
            change(kwargs)
            return original(*args, **kwargs)

        return call

    return around
