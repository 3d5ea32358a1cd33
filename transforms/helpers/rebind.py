"""What held a model's parameters before sharding holds the sharded ones afterwards."""

import gc
import sys
import warnings
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from types import CellType
from typing import Any, cast

import torch
from torch import nn
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer

from .whole import shard_like


@contextmanager
def rebound_parameters(module: nn.Module) -> Iterator[None]:
    """Around calls of fully_shard: what held parameters of `module` before, such as an optimizer, holds the sharded ones."""
    slots = parameter_slots(module)
    yield
    rebind_parameters(slots)


def parameter_slots(module: nn.Module) -> list[Any]:
    """Every place of a parameter in `module`, to be taken before sharding: owner, name, the parameter, its attributes.

    The references are weak, so that parameters which only the module held are gone after sharding. Raises TypeError where an
    optimizer steps on memory that parameters are views of, which sharded ones have not.
    """

    def attributes(parameter: nn.Parameter) -> dict[str, Any]:
        found = dict(vars(parameter))
        for name in ("_backward_hooks", "_post_accumulate_grad_hooks"):  # needed for: parameter_hooks
            if hooks := getattr(parameter, name):
                found[name] = hooks
        found.setdefault("_id_before_sharding", id(parameter))  # needed for: identities
        return found

    places = [(owner, name, p) for owner in module.modules() for name, p in owner._parameters.items() if p is not None]
    _refuse_flat_optimizers({p for _, _, p in places})
    return [(owner, name, weakref.ref(p), attributes(p)) for owner, name, p in places]


def _refuse_flat_optimizers(parameters: set[nn.Parameter]) -> None:
    own = [p for p in parameters if not isinstance(p, DTensor)]
    views = [p for p in own if p.untyped_storage().nbytes() > p.numel() * p.element_size()]
    for held in gc.get_objects() if views else ():
        groups = held.param_groups if issubclass(type(held), Optimizer) else ()
        stepped = [p for group in groups for p in group["params"] if p not in parameters and not isinstance(p, DTensor)]
        if any(_begins_in(view, p) for p in stepped for view in views):
            raise TypeError(
                f"{type(held).__name__} steps on one tensor that the parameters are views of, which sharded ones are not: "
                "build it over model.parameters()"
            )


def _begins_in(view: torch.Tensor, tensor: torch.Tensor) -> bool:
    return tensor.data_ptr() <= view.data_ptr() < tensor.data_ptr() + tensor.numel() * tensor.element_size()


def rebind_parameters(slots: list[Any]) -> None:
    """Give whatever still holds a parameter from before sharding the one in its place now: an optimizer, with its state,
    lists, tuples, dictionaries and objects. It would train nothing, and say nothing.

    They are edited in place, so schedulers and gradient scalers that hold them need nothing; tuples are made anew in what
    holds them. Names of functions that run go on with what they stand for. Attributes and hooks that were
    set on a parameter move to the new one. Raises TypeError for optimizer state that cannot be sharded.
    """
    swap: dict[int, Any] = {}
    before: list[Any] = []
    holder: Any = None
    for owner, name, reference, attributes in slots:
        old, new = reference(), owner._parameters[name]
        if new is None or old is new:
            continue
        for key in attributes.keys() - vars(new).keys():
            if not key.startswith("_fsdp"):
                setattr(new, key, attributes[key])
        if old is not None:
            swap[id(old)] = new
            before.append(old)
    for held in gc.get_objects() if before else ():  # needed for: zero_redundancy
        if type(held).__name__ == "ZeroRedundancyOptimizer" and any(id(p) in swap for p in held._all_params):
            raise TypeError("ZeroRedundancyOptimizer splits parameters by rank, as fully_shard does: build its inner optimizer")
    replaced, pending = before, before  # kept alive, for their ids
    while pending:  # what cannot be edited is made anew, and takes the old one's place in turn
        anew: list[Any] = []
        for holder in gc.get_referrers(*pending):
            if type(holder) is list and all(holder is not own for own in (replaced, pending, anew)):
                holder[:] = [swap.get(id(item), item) for item in holder]
            elif isinstance(values := holder if isinstance(holder, dict) else getattr(holder, "__dict__", None), dict):
                for key in [key for key, value in values.items() if id(value) in swap]:
                    values[key] = swap[id(values[key])]
                if any(id(key) in swap for key in values):
                    moved = [(swap.get(id(k), k), _shard_state(value, swap.get(id(k)), values)) for k, value in values.items()]
                    values.clear()  # filled again in the same order, which state dicts show
                    values.update(moved)
            elif isinstance(holder, set):
                for item in [item for item in holder if id(item) in swap]:
                    holder.remove(item)
                    holder.add(swap[id(item)])
            elif isinstance(holder, CellType):
                holder.cell_contents = swap.get(id(holder.cell_contents), holder.cell_contents)
            elif isinstance(holder, (tuple, frozenset)) and id(holder) not in swap:
                items = [swap.get(id(item), item) for item in holder]
                swap[id(holder)] = cast(Any, holder)._make(items) if hasattr(holder, "_make") else type(holder)(items)
                anew.append(holder)
        replaced, pending = [*replaced, *anew], anew
    tuples, holder = replaced[len(before) :], None
    del replaced[len(before) :]
    unheld = (object(),)
    while tuples:  # from the outside in
        holder = tuples.pop()
        if sys.getrefcount(holder) > sys.getrefcount(unheld):  # a name of a function that runs, which nobody else can change
            kind = type(holder).__name__
            warnings.warn(f"a {kind} still holds parameters from before sharding: make it anew from the model", stacklevel=2)


def _shard_state(state: Any, new: Any, states: Any) -> Any:
    """What an optimizer keeps of a parameter, with this rank's parts of tensors, as the parameter is sharded now."""
    if not isinstance(state, dict) or not isinstance(new, DTensor):
        return state
    for value in state.values():
        if isinstance(value, torch.Tensor) and value.dim() and value.shape != new.shape:
            if _steps_on_whole(states):
                continue
            raise TypeError(
                f"optimizer state of shape {tuple(value.shape)} cannot be sharded like its parameter of shape "
                f"{tuple(new.shape)}: build the optimizer after sharding and load its state there"
            )
    return {key: shard_like(value, new) if isinstance(value, torch.Tensor) else value for key, value in state.items()}


def _steps_on_whole(states: Any) -> bool:
    """Whether the optimizer that has these states takes whole parameters at each step: state of any shape serves it."""
    owners = (one for one in gc.get_objects() if issubclass(type(one), Optimizer) and one.state is states)
    return any(hasattr(owner, "_steps_on_whole") or hasattr(owner.step, "_steps_on_whole") for owner in owners)
