"""Who answers what code asks of sharded tensors: as of each rank's part or as of the whole, by the model they are of."""

import functools
import inspect
import sys
from collections.abc import Callable
from types import CodeType
from typing import Any

import torch
from torch.distributed.tensor import DTensor

from .assigned_gradients import share_assigned
from .tensors import tensors_in
from .unsynced import unsynced_gradient
from .whole import map_tensors

WORKS_ON_SHARDS = ("torch.optim.", "torch.distributed.", "torch.amp.", "torch.cuda.amp.", "torch.nn.utils.clip_grad.")
"""Modules whose code computes with shards, with a dot behind: `torch.optimizers` would be another one."""
HELPERS: tuple[str, ...] = ()
"""The helpers of this module, where the code of a program stands beside them; where none does, all are."""


def writes_in_place(name: str, keywords: Any) -> bool:
    """Whether a function writes: `add_`, `__iadd__`, `_foreach_mul_`, `__setitem__`."""
    return (name.endswith("_") and not name.endswith("__")) or name == "__setitem__" or "out" in keywords


def answer_with(compute: Callable[..., Any], kind: str) -> None:
    """Let `compute(function, arguments, keywords, caller)` answer what is called with sharded tensors.

    A process may hold models of two kinds: "parts", whose tensors are marked, and "whole", which all others are of. Of
    several tensors the first one says. What comes out of a marked one is marked, such as its gradient. The answers are kept
    in torch, for there may be several copies of this module.
    """
    answers: Any = {**getattr(DTensor, "_answers", {}), kind: compute}
    DTensor._answers = answers  # pyright: ignore[reportAttributeAccessIssue]
    DTensor.__torch_function__ = classmethod(_answer)  # pyright: ignore[reportAttributeAccessIssue]


def _answer(_: type, function: Any, types: Any, arguments: Any = (), keywords: Any = None) -> Any:
    caller, keywords = sys._getframe(1), keywords or {}
    answers: dict[str, Any] = DTensor._answers  # pyright: ignore[reportAttributeAccessIssue]
    with torch._C.DisableTorchFunctionSubclass():
        if getattr(DTensor, "_models_held", 0):  # whole on each rank: what code of its own has of a parameter stands for that
            arguments, keywords = map_tensors(_held, arguments), map_tensors(_held, keywords)
            if not any(isinstance(tensor, DTensor) for tensor in tensors_in((arguments, keywords))):
                return function(*arguments, **keywords)
        compute = next(iter(answers.values()))
        sharded = (tensor for tensor in tensors_in((arguments, keywords)) if isinstance(tensor, DTensor))  # needed for: both_math
        is_part = hasattr(next(sharded, None), "_acts_as_part")  # needed for: both_math
        if len(answers) > 1:  # needed for: both_math
            compute = answers["parts" if is_part else "whole"]
        if function.__name__ == "__get__" or function is torch.Tensor.backward:
            result = function(*arguments, **keywords)
            if getattr(function, "__self__", None) is torch.Tensor.data:  # needed for: assigned_gradients
                share_assigned(arguments[0], result)
            if result is None and getattr(function, "__self__", None) is torch.Tensor.grad:  # needed for: gradient_sync
                result = None if is_called_for_shards(caller) else unsynced_gradient(arguments[0])
        else:
            result = compute(function, arguments, keywords, caller)
        if is_part:  # needed for: both_math
            map_tensors(mark_as_part, result)
        return result


def _held(tensor: Any) -> Any:
    return getattr(tensor, "_held_whole", tensor) if isinstance(tensor, DTensor) else tensor


def mark_as_part(tensor: Any) -> Any:
    """Let a tensor, if it is sharded, be of the kind "parts"."""
    if isinstance(tensor, DTensor):
        tensor._acts_as_part = True  # pyright: ignore[reportAttributeAccessIssue]
    return tensor


def is_called_for_shards(caller: Any) -> bool:
    """Whether code of torch that works on shards called a function, itself or by other code of torch."""
    while caller is not None:
        if _works_on_shards(caller):
            return True
        if (caller.f_globals.get("__name__") or "").partition(".")[0] != "torch":
            return False
        caller = caller.f_back
    return False


def _works_on_shards(frame: Any) -> bool:
    module = f"{frame.f_globals.get('__name__')}."
    if HELPERS:  # needed for: beside_code
        return frame.f_code in _code_of_helpers() or module.startswith(WORKS_ON_SHARDS)
    return module.startswith((*WORKS_ON_SHARDS, f"{__name__.removesuffix('.sharded_math')}."))


@functools.cache
def _code_of_helpers() -> frozenset[CodeType]:
    """The code of the helpers and of the functions in them: only this tells them from a program in the same file."""
    held = [globals()[name] for name in HELPERS]
    held += [method for one in held if isinstance(one, type) for method in vars(one).values()]
    found = [inspect.unwrap(one).__code__ for one in held if hasattr(inspect.unwrap(one), "__code__")]
    for code in found:
        found += [inner for inner in code.co_consts if isinstance(inner, CodeType)]
    return frozenset(found)
