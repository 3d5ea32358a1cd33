"""Objects of libraries that keep a model, or its parameters, such as an average of it: they know nothing of shards."""

import functools
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from inspect import isfunction
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import DTensor

from .copies import plain_copy
from .parameters import write_shard
from .whole import map_tensors, whole


def with_whole_copies(make: Callable[..., Any]) -> Callable[..., Any]:
    """`make`, a class of a library: what it makes keeps plain, whole copies of the models and parameters that it is given.

    Whenever one of its methods is called they hold the model's present values, and what the method writes there goes back to
    the model. All ranks make it and call its methods; one alone may inside `whole_on_each_rank`.
    """

    @functools.wraps(make, updated=())
    def build(*args: Any, **kwargs: Any) -> Any:
        if not dist.is_initialized() or dist.get_world_size() == 1:
            return make(*args, **kwargs)
        copies = _Copies()
        made = make(*[copies.of(value, True) for value in args], **{key: copies.of(value, True) for key, value in kwargs.items()})
        _keep_up_to_date(made, copies)
        return made

    return build


class _Copies:
    """Plain copies of parameters and models, made when they are first met."""

    def __init__(self) -> None:
        self.pairs: list[tuple[dict[str, Any], str, Any]] = []
        """Where each tensor lives, and its copy: a dictionary and a key, where sharding puts another one for it."""
        self.models: dict[nn.Module, nn.Module] = {}
        self.running = False

    def of(self, value: Any, is_kept: bool = False) -> Any:
        """`value` with copies in place of models and parameters, also in lists, dicts and iterators.

        What is kept may be sharded later, so all of it is copied; of what methods get, only what is sharded.
        """
        known = {id(tensor): mine for holder, key, mine in self.pairs for tensor in (holder[key], mine)}

        def model_of(model: nn.Module) -> nn.Module:
            if any(model is copied for copied in self.models.values()):
                return model
            if model not in self.models and (is_kept or any(isinstance(p, DTensor) for p in model.parameters())):
                copied = self.models[model] = plain_copy(model)
                for live, mine in zip(model.modules(), copied.modules(), strict=True):
                    for holder, own in ((live._parameters, mine._parameters), (live._buffers, mine._buffers)):
                        self.pairs += [(holder, key, own[key]) for key, tensor in holder.items() if tensor is not None]
            return self.models.get(model, model)

        def copy_of(parameter: nn.Parameter) -> nn.Parameter:
            if id(parameter) not in known and (is_kept or isinstance(parameter, DTensor)):
                known[id(parameter)] = nn.Parameter(whole(parameter.detach()).clone(), parameter.requires_grad)
                self.pairs.append(({"": parameter}, "", known[id(parameter)]))
            return known.get(id(parameter), parameter)

        if isinstance(value, Iterator):
            return iter([self.of(item, is_kept) for item in value])
        return map_tensors(copy_of, map_tensors(model_of, value, nn.Module), nn.Parameter)

    @contextmanager
    @torch.no_grad()
    def up_to_date(self) -> Iterator[None]:
        """The copies hold what the model holds; at the end the model holds what was written to them."""
        if self.running:
            yield
            return
        for holder, key, mine in self.pairs:
            live = holder[key]
            full = live._held_whole if hasattr(live, "_held_whole") else whole(live.detach())
            if (full.device, full.dtype) != (mine.device, mine.dtype):  # the model has been moved
                mine.data = torch.empty_like(full)
            mine.data.copy_(full)
        self.running = True
        try:
            yield
        finally:
            self.running = False
        for holder, key, mine in self.pairs:
            _write(holder[key], mine.detach())


def _write(live: torch.Tensor, value: torch.Tensor) -> None:
    live = getattr(live, "_held_whole", live).detach()
    before = live.clone()
    if isinstance(live, DTensor):
        write_shard(before, value)  # pyright: ignore[reportArgumentType]
        changed = not torch.equal(before.to_local(), live.to_local())  # pyright: ignore[reportAttributeAccessIssue]
        value = before
    else:
        changed = not torch.equal(live, value)
    if changed:  # writing counts as an edit, which a backward that is still to come refuses
        live.copy_(value)


def _keep_up_to_date(made: Any, copies: _Copies) -> None:
    """Give `made` a class of its own, whose methods find the copies up to date."""
    own = type(made)

    def around(method: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(method)
        def run(self: Any, *args: Any, **kwargs: Any) -> Any:
            given = [copies.of(value) for value in args], {key: copies.of(value) for key, value in kwargs.items()}
            with copies.up_to_date():
                result = method(self, *given[0], **given[1])
            is_context = isinstance(result, AbstractContextManager) and result is not self
            return _entered_up_to_date(result, copies) if is_context else result

        return run

    written = [vars(base) for base in own.__mro__ if base is not nn.Module]
    names = {name for body in written for name, value in body.items() if isfunction(value)}
    names = {name for name in names if not name.startswith("__")} | (names & {"__enter__", "__exit__", "__call__"})
    if isinstance(made, nn.Module):
        names |= {"state_dict", "load_state_dict"}

    def as_before(self: Any, _: Any) -> Any:
        self.__class__ = own  # files hold what they held
        try:
            return self.__reduce_ex__(1)  # later protocols ask the object for its class
        finally:
            self.__class__ = kept

    kept = type(own.__name__, (own,), {**{name: around(getattr(own, name)) for name in names}, "__reduce_ex__": as_before})
    object.__setattr__(made, "__class__", kept)


@contextmanager
def _entered_up_to_date(context: Any, copies: _Copies) -> Iterator[Any]:
    """A context that a method gave back, which works when it is entered and left."""
    with ExitStack() as stack:
        with copies.up_to_date():
            entered = stack.enter_context(context)
        try:
            yield entered
        finally:
            with copies.up_to_date():
                stack.close()
