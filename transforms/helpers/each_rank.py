"""Work that only some ranks do on models and optimizers whose parts lie on all of them."""

import functools
import gc
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from types import ModuleType
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed._composable_state import _module_state_mapping
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_pre_hook

from .agreement import from_rank, held_by_all_ranks, meeting_of_all_ranks, ranks_where, true_on_any_rank
from .handed_out import cut_state, hand_out
from .parameters import note_change, resharded
from .sharding_hooks import without_sharding_hooks
from .whole import shard_like, whole


@contextmanager
def whole_on_each_rank(*things: Any, needed: bool = True) -> Iterator[None]:
    """Inside, each rank has these models and optimizers whole and may use them alone, as under DDP. Every rank enters.

    Forwards, saves and reads inside are local to a rank. What is written to parameters and state stays: of what only some
    ranks write, the first one's goes to all. What code keeps of parameters are the shards afterwards. Training takes all
    ranks: an optimizer's step raises RuntimeError, at the end gradients that are left do, and a later backward of what was
    computed inside. Of other objects, the models, optimizers and sharded tensors that they hold are taken; with
    `needed=False` nothing is gathered.
    """
    with ExitStack() as stack:
        if needed:  # needed for: questions
            ask_for_whole()
            _open_questions().append(lambda _: None)
            stack.callback(_open_questions().pop)
        held = list(models_and_optimizers(things)) if needed else []
        for thing in sorted(held, key=lambda thing: isinstance(thing, DTensor)):  # of a list, those that no model here has
            if isinstance(thing, nn.Module) and any(isinstance(one, (FSDPModule, DTensor)) for one in _held_in(thing)):
                if not getattr(thing, "_held_whole", False) and not hasattr(thing, "_summoned"):  # nor under another name
                    stack.enter_context(_whole_model(thing))
            elif isinstance(thing, Optimizer):
                if not getattr(thing, "_held_whole", False):
                    stack.enter_context(_whole_optimizer(thing))
            elif isinstance(thing, DTensor) and not hasattr(thing, "_held_whole"):
                full = whole(thing.detach()).requires_grad_(thing.requires_grad)
                thing._held_whole = full  # pyright: ignore[reportAttributeAccessIssue]
                stack.callback(vars(thing).pop, "_held_whole", None)
        yield


def _held_in(module: nn.Module) -> Iterator[Any]:
    yield from module.modules()
    yield from module.parameters()  # of a part whose unit lies further out


def models_and_optimizers(held: Iterable[Any], depth: int = 3) -> Iterator[Any]:
    """Those among these objects, and those that they hold: attributes by name, so that ranks agree about the order."""
    for thing in held:
        if isinstance(thing, DTensor):
            yield thing
        elif isinstance(thing, nn.Module):
            yield thing
            inside = (vars(module) for module in thing.modules())
            yield from (found for held in inside for _, found in sorted(held.items()) if isinstance(found, Optimizer))
        elif isinstance(thing, Optimizer):
            yield thing
            yield from (inner for _, inner in sorted(vars(thing).items()) if isinstance(inner, Optimizer))
        elif depth and isinstance(thing, (list, tuple)):
            yield from models_and_optimizers(thing, depth - 1)
        elif not depth or isinstance(thing, (type, ModuleType)):
            continue
        elif isinstance(inside := getattr(thing, "__dict__", thing), dict):
            yield from models_and_optimizers((inside[key] for key in sorted(inside, key=str)), depth - 1)


@contextmanager
def everything_whole_on_each_rank(needed: bool = True) -> Iterator[None]:
    """`whole_on_each_rank` with every sharded model and every optimizer there is; nothing more inside of another hold. Also a
    decorator.
    """
    models: list[nn.Module] = []
    optimizers: list[Optimizer] = []
    # Inside of another hold one rank alone may come here, and what it needs is held.
    outermost = needed and not getattr(DTensor, "_all_is_whole", False) and not getattr(DTensor, "_models_held", 0)
    if outermost:
        gc.collect()  # what is garbage on one rank shall not be alive on another
        units = [module for module in list(_module_state_mapping) if isinstance(module, FSDPModule)]  # in order of sharding
        inner = {child for unit in units for child in unit.modules() if child is not unit}
        models = [unit for unit in units if unit not in inner and not getattr(unit, "_held_whole", False)]
        places = {id(p): place for place, p in enumerate(p for model in units for p in model.parameters())}
        found = [held for held in gc.get_objects() if issubclass(type(held), Optimizer) and any(_sharded_entries(held))]
        order = {id(held): [places.get(id(p), -1) for group in held.param_groups for p in group["params"]] for held in found}
        optimizers = sorted(found, key=lambda held: order[id(held)])
        if models or optimizers:  # else all is whole already, and again one rank may be alone
            models, optimizers = held_by_all_ranks(models), held_by_all_ranks(optimizers)
    with whole_on_each_rank(*models, *optimizers):
        try:
            DTensor._all_is_whole = outermost or getattr(DTensor, "_all_is_whole", False)  # pyright: ignore
            yield
        finally:
            DTensor._all_is_whole = not outermost and getattr(DTensor, "_all_is_whole", False)  # pyright: ignore


def entered(context: AbstractContextManager[None]) -> ExitStack:
    """The context, entered: `close()` leaves it, as the end of a `with` block would, whose lines need not move for it. An
    exception that ends the function leaves it too.
    """
    stack = ExitStack()
    stack.enter_context(context)
    return stack


def _open_questions() -> list[Callable[[bool], None]]:
    """What is told of a rank's wish, innermost last: the same list for all copies of this file that a repository has."""
    if not hasattr(DTensor, "_open_questions"):
        DTensor._open_questions = []  # pyright: ignore[reportAttributeAccessIssue]
    return DTensor._open_questions  # pyright: ignore[reportAttributeAccessIssue]


@contextmanager
def whole_when_asked(*things: Any) -> Iterator[None]:
    """`whole_on_each_rank` from where a rank inside calls `ask_for_whole()`; of everything, if no things are named.

    Every rank enters. One that is through, or asks, waits for the others: until one of them asks, or all are through.
    """
    if _open_questions():  # not all ranks may be here, or it is whole already
        yield
        return
    answered = False
    with ExitStack() as stack:

        def answer(asks: bool) -> None:
            nonlocal answered
            if not answered:
                answered = True
                if true_on_any_rank(asks):
                    stack.enter_context(whole_on_each_rank(*things) if things else everything_whole_on_each_rank())

        _open_questions().append(answer)
        try:
            yield
            answer(False)
        finally:
            _open_questions().remove(answer)


def ask_for_whole() -> None:
    """Inside of `whole_when_asked`: what it names is whole on each rank from here on. Elsewhere, nothing happens."""
    if _open_questions():
        _open_questions()[-1](True)


def holding_whole(things: Callable[..., Any]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Decorator: `whole_on_each_rank` around a function that a decorator below lets only some ranks run.

    `things` is called with the function's arguments and gives the models and optimizers in a tuple.
    """

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def run(*args: Any, **kwargs: Any) -> Any:
            with whole_on_each_rank(*things(*args, **kwargs)):
                return function(*args, **kwargs)

        return run

    return decorate


@contextmanager
def _whole_model(module: nn.Module) -> Iterator[None]:
    """Whole parameters in the place of shards, without fully_shard's hooks around forward."""
    meet = meeting_of_all_ranks()
    units: list[Any] = [m for m in resharded(module).modules() if isinstance(m, FSDPModule)]
    gathered = [unit for unit in units if _take_shards(unit)]
    shards = [(m, name, p) for m in module.modules() for name, p in m._parameters.items() if isinstance(p, DTensor)]
    full = {p: nn.Parameter(whole(p.detach()), requires_grad=p.requires_grad) for _, _, p in shards}
    for p, whole_one in full.items():  # needed for: gradient_reads
        whole_one.grad = p.grad.full_tensor() if isinstance(p.grad, DTensor) else None
    references = [sys.getrefcount(full[p]) for p in full]
    given = [(p, p.grad, -1 if p.grad is None else p.grad._version) for p in full.values()]
    before = [_content(whole_one) for whole_one in full.values()]
    lost = (
        "training ran behind a test of the rank, on a copy of a sharded model that only this rank has: "
        "what it learns would be lost. Train on all ranks, outside of whole_on_each_rank"
    )

    def refuse(optimizer: Optimizer, *_: Any) -> None:
        if any(p in full for group in optimizer.param_groups for p in group["params"]):
            raise RuntimeError(lost)

    has_ended: list[bool] = []

    def refuse_late(_: torch.Tensor) -> None:
        if has_ended:  # inside, gradients that are cleared again do no harm
            raise RuntimeError(lost)

    for p, whole_one in full.items():
        if whole_one.requires_grad:
            whole_one._backward_hooks = p._backward_hooks
            whole_one.register_post_accumulate_grad_hook(refuse_late)
    handle = register_optimizer_step_pre_hook(refuse)
    try:
        DTensor._models_held = getattr(DTensor, "_models_held", 0) + 1  # pyright: ignore[reportAttributeAccessIssue]
        for owner, name, p in shards:
            owner._parameters[name] = full[p]
            p._held_whole = full[p]  # pyright: ignore[reportAttributeAccessIssue]
        with without_sharding_hooks(module), _moved_as_registered():
            yield
        if any(p.grad is not None and (p.grad is not grad or p.grad._version != version) for p, grad, version in given):
            raise RuntimeError(lost)
    finally:
        handle.remove()
        has_ended.append(True)
        given.clear()
        DTensor._models_held -= 1  # pyright: ignore[reportAttributeAccessIssue]
        for owner, name, p in shards:
            owner._parameters[name] = p
            vars(p).pop("_held_whole", None)
            p._backward_hooks = p._backward_hooks or full[p]._backward_hooks  # those that were registered inside
        kept = [p for p, count in zip(full, references, strict=True) if sys.getrefcount(full[p]) > count]
        hand_out({id(full[p]): p for p in kept}, [full[p] for p in kept], [full])
        _keep_what_was_written([(p, full[p], _content(full[p]) != old) for p, old in zip(full, before, strict=True)], meet)
        note_change()  # whatever only some ranks did inside: all gather anew
    for unit in gathered:
        unit.unshard()


def _content(value: torch.Tensor) -> tuple[int, int]:
    """What is another one when a tensor was written to: torch counts that, but for what is written through `.data`."""
    return value._version, int(value.detach().reshape(-1).view(torch.uint8).sum())


@torch.no_grad()
def _keep_what_was_written(held: list[tuple[DTensor, torch.Tensor, bool]], meet: Callable[[], bool]) -> None:
    """Cuts anew the shards of what was whole, where ranks wrote to it: what some of them wrote, all get from the first one.

    A rank that an exception ends takes part. When some have ended their process group, nothing is trained any more.
    """
    if held and not meet():
        return
    writers = ranks_where([is_written and value.shape == live.shape for live, value, is_written in held])
    for (live, value, _), ranks in zip(held, writers, strict=True):
        if ranks:
            of_some = dist.is_initialized() and len(ranks) < dist.get_world_size()
            written = from_rank(ranks[0], value, live.dtype) if of_some else value
            part: Any = shard_like(written.to(live.device), live)
            live.to_local().copy_(part.to_local())


@contextmanager
def _moved_as_registered() -> Iterator[None]:
    """Inside, `model.to(...)` of a model that is held whole moves what is registered: fully_shard would look for shards there."""
    shards_moved = FSDPModule._apply

    def moved(unit: Any, *args: Any, **kwargs: Any) -> Any:
        return (nn.Module._apply if getattr(unit, "_held_whole", False) else shards_moved)(unit, *args, **kwargs)

    sharded: Any = FSDPModule
    sharded._apply = moved
    sharded._replicate_for_data_parallel = _replica  # needed for: replicas
    try:
        yield
    finally:
        sharded._apply = shards_moved


def _replica(unit: Any) -> Any:
    """A copy for DataParallel, of the model's own class: fully_shard's makes no object without its arguments."""
    own = type(unit)
    unit.__class__ = own.__mro__[2] if getattr(unit, "_held_whole", False) else own
    try:
        return nn.Module._replicate_for_data_parallel(unit)
    finally:
        unit.__class__ = own


def _take_shards(unit: Any) -> bool:
    """Register a unit's shards where it stays gathered: in a method that goes through fully_shard's hooks. Whether it was."""
    group = unit._get_fsdp_state()._fsdp_param_group
    if group is None or group.is_sharded:
        return False
    group._to_sharded()
    return True


@contextmanager
def _whole_optimizer(optimizer: Optimizer) -> Iterator[None]:
    """Whole tensors in the place of sharded ones in the optimizer's state: in dictionaries of its own, so that a state dict
    that is taken inside stays whole, as one does that is loaded."""
    meet = meeting_of_all_ranks()
    gathered: dict[int, dict[Any, Any]] = {}
    for entry, key, value in _sharded_entries(optimizer):
        gathered.setdefault(id(entry), {})[key] = whole(value)
    kept = [(p, entry) for p, entry in optimizer.state.items() if id(entry) in gathered]
    before = {id(value): (value, _content(value)) for wholes in gathered.values() for value in wholes.values()}
    held: list[tuple[DTensor, torch.Tensor, bool]] = []
    optimizer._held_whole = True  # pyright: ignore[reportAttributeAccessIssue]
    try:
        for p, entry in kept:
            optimizer.state[p] = {**entry, **gathered[id(entry)]}
        yield
    finally:
        vars(optimizer).pop("_held_whole", None)
        known = {p for p, _ in kept}
        loaded = [(p, entry) for p, entry in optimizer.state.items() if isinstance(p, DTensor) and p not in known]
        optimizer.state.update((p, cut_state(entry, p)) for p, entry in loaded)
        for p, entry in kept:
            written = optimizer.state.get(p, entry)
            entry.update((key, value) for key, value in written.items() if key not in gathered[id(entry)])
            optimizer.state[p] = entry
            now = {key: written.get(key, value) for key, value in gathered[id(entry)].items()}
            held += [(entry[key], value, before.get(id(value), (None, None))[1] != _content(value)) for key, value in now.items()]
        _keep_what_was_written(held, meet)


def _sharded_entries(optimizer: Optimizer) -> Iterator[tuple[Any, Any, DTensor]]:
    """The sharded tensors in an optimizer's state, each with the dictionary and the key that it stands under."""
    for entry in (entry for entry in optimizer.state.values() if isinstance(entry, dict)):  # not what is kept for all
        yield from ((entry, key, value) for key, value in entry.items() if isinstance(value, DTensor))


def saving_whole(checkpointer: Any) -> Any:
    """A library's checkpointer whose `save`, called by all ranks, has its model and optimizers whole on each of them."""
    save = checkpointer.save

    @functools.wraps(save)
    def saved(*args: Any, **kwargs: Any) -> Any:
        held = [*models_and_optimizers([checkpointer], depth=4)]  # a trainer in it has a trainer that has the optimizer
        with whole_on_each_rank(*sorted(held, key=lambda one: isinstance(one, Optimizer))):
            return save(*args, **kwargs)

    checkpointer.save = saved
    return checkpointer
