"""Optimizers that look at more than single elements: norms of parameters, their shapes, rows and columns, own kernels."""

import functools
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from types import MethodType
from typing import Any, cast

import torch
from torch import nn
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer

from .parameters import write_shard
from .whole import whole

BY_ELEMENT = frozenset(
    {"SGD", "Adam", "AdamW", "Adamax", "Adagrad", "Adadelta", "RMSprop", "RAdam", "NAdam", "ASGD", "Rprop", "SparseAdam", "Lion",
     "AdaBelief"}
)  # fmt: skip
"""Spelled as torch and their authors do: others' classes of like names, such as timm's Nadam, do what shards cannot."""
OF_STEPS = ("sync_lookahead", "swap_swa_sgd", "swap_parameters_with_ema")
"""Methods beside `step` by which optimizers write parameters with what they keep of these; all ranks call them."""


def step_on_whole(optimizer: Any) -> Any:
    """`optimizer`, or what stands for one, with steps that see whole parameters and gradients: `on_whole_parameters`.

    One whose class is known to compute element by element goes on stepping on shards; what has steps and no parameters, as a
    scheduler or a scaler does, is no optimizer.
    """
    kind = type(optimizer)
    is_known = kind.__name__ in BY_ELEMENT and not kind.__module__.startswith(("apex.", "bitsandbytes.", "deepspeed."))
    step, running = getattr(optimizer, "step", None), ExitStack()
    if step is None or is_known or not hasattr(optimizer, "param_groups"):
        return optimizer
    if not isinstance(optimizer, Optimizer) or not hasattr(optimizer, "_optimizer_step_pre_hooks"):  # made around another
        optimizer.step = MethodType(on_whole_parameters(lambda _, *args, **kwargs: step(*args, **kwargs)), optimizer)
        return optimizer

    def enter(optimizer: Optimizer, args: Any, kwargs: Any) -> Any:  # innermost: all other hooks of steps see shards
        wrapped = running.enter_context(_whole_parameters_of(optimizer))
        return tuple(map(wrapped, args)), {key: wrapped(value) for key, value in kwargs.items()}

    cast(Any, optimizer)._steps_on_whole = True
    optimizer.register_step_pre_hook(enter)
    optimizer.register_step_post_hook(lambda *_: running.close())
    for name in OF_STEPS:
        method = getattr(type(optimizer), name, None)
        if method is not None:
            setattr(optimizer, name, MethodType(on_whole_parameters(method), optimizer))
    return optimizer


def on_whole_parameters(step: Callable[..., Any]) -> Callable[..., Any]:
    """Decorator of an optimizer's `step`, which then sees whole parameters and gradients on every rank, as under DDP.

    Its state is whole on every rank too. All ranks step. Without sharded parameters it is the step as it is.
    """

    @functools.wraps(step)
    def run(self: Any, *args: Any, **kwargs: Any) -> Any:
        with _whole_parameters_of(self) as wrapped:
            return step(self, *map(wrapped, args), **{key: wrapped(value) for key, value in kwargs.items()})

    run._steps_on_whole = True  # pyright: ignore[reportAttributeAccessIssue]
    return run


@contextmanager
def _whole_parameters_of(optimizer: Any) -> Iterator[Callable[[Any], Any]]:
    """Whole parameters in the groups of an optimizer and of those in it. Gives a function that lets closures see shards."""
    optimizers = _with_inner(optimizer)
    lists: list[list[Any]] = [group["params"] for each in optimizers for group in getattr(each, "param_groups", ())]
    held = [list(params) for params in lists]
    sharded = [p for params in held for p in params if isinstance(p, DTensor)]
    full = {p: nn.Parameter(whole(p.detach()), p.requires_grad) for p in sharded}

    versions: dict[Any, int] = {}

    def show_whole() -> None:
        for p, mine in full.items():
            mine.grad = whole(p.grad)
            versions[p] = 0 if mine.grad is None else mine.grad._version
        for params in lists:
            params[:] = [full.get(p, p) for p in params]  # in place: LBFGS keeps the list

    def show_shards() -> None:
        for p, mine in full.items():
            write_shard(p, mine)
            if mine.grad is None:
                p.grad = None  # which the step has dropped
            elif isinstance(p.grad, DTensor) and mine.grad._version != versions[p]:
                write_shard(p.grad, mine.grad)
        for params, before in zip(lists, held, strict=True):
            params[:] = before

    def evaluated(closure: Callable[[], Any]) -> Any:
        show_shards()
        with torch.enable_grad():
            result = closure()
        show_whole()
        return result

    def rename_state(keys: dict[Any, Any]) -> None:
        for state in (each.state for each in optimizers if hasattr(each, "state")):  # one made around another may have none
            for old in [old for old in keys if old in state]:
                state[keys[old]] = whole(state.pop(old))
        for held in (held for each in optimizers for name, held in vars(each).items() if name != "state"):
            if isinstance(held, (dict, set)) and any(key in keys for key in held):  # masks of gradients, say
                found = [(keys.get(key, key), held[key] if isinstance(held, dict) else None) for key in held]
                held.clear()
                held.update(found if isinstance(held, dict) else [key for key, _ in found])

    show_whole()
    rename_state(full)
    try:
        yield lambda value: functools.partial(evaluated, value) if full and callable(value) else value
    finally:
        show_shards()
        rename_state({mine: p for p, mine in full.items()})


def _with_inner(optimizer: Any) -> list[Any]:
    """An optimizer, and those that it was made around: their groups may be the same lists."""
    found = [optimizer]
    for each in found:
        held = vars(each).values() if hasattr(each, "__dict__") else ()
        found += [v for v in held if hasattr(v, "param_groups") and hasattr(v, "state") and all(v is not o for o in found)]
    return found
