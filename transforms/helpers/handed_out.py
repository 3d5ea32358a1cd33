"""What code keeps of parameters that were whole for a while: the sharded ones afterwards."""

import functools
import gc
from collections.abc import Sequence
from types import CellType, FunctionType
from typing import Any

import torch
from torch.distributed.tensor import DTensor

from .whole import shard_like


def hand_out(new: dict[int, Any], olds: list[Any], apart: Sequence[Any] = ()) -> None:
    """Put other objects where something keeps `olds`, whose ids are keys of `new`: shards in the place of the whole parameters
    that stood for them, as averages and optimizers made inside keep them. Nothing changes in the objects `apart`.
    """
    left = {id(one) for one in (olds, *apart)}
    for holder in gc.get_referrers(*olds) if olds else ():
        if id(holder) in left:
            continue
        if type(holder) is tuple:  # which takes no others
            hand_out({id(holder): tuple(new.get(id(item), item) for item in holder)}, [holder], apart)
        elif type(holder) is list:
            holder[:] = [new.get(id(item), item) for item in holder]
        elif type(holder) is set:
            changed = [new.get(id(item), item) for item in holder]
            holder.clear()
            holder.update(changed)
        elif isinstance(holder, CellType):
            holder.cell_contents = new.get(id(holder.cell_contents), holder.cell_contents)
        elif isinstance(holder, FunctionType) and id(holder.__defaults__) in new:
            holder.__defaults__ = new[id(holder.__defaults__)]
        elif isinstance(holder, functools.partial) and id(holder.args) in new:
            partial: Any = holder
            partial.__setstate__((holder.func, new[id(holder.args)], holder.keywords, vars(holder)))
        else:
            entries = _entries(holder)
            entries.update((key, new[id(value)]) for key, value in list(entries.items()) if id(value) in new)
            for key in [key for key in entries if id(key) in new]:
                entries[new[id(key)]] = cut_state(entries.pop(key), new[id(key)])


def _entries(holder: Any) -> dict[Any, Any]:
    """A dictionary, or an object's attributes, which may have none of their own before somebody asks for it."""
    return holder if isinstance(holder, dict) else getattr(holder, "__dict__", {}) if not isinstance(holder, type) else {}


def cut_state(entry: Any, live: Any) -> Any:
    """What an optimizer keeps for a parameter, of shards where it was of the whole."""
    if not isinstance(entry, dict) or not isinstance(live, DTensor):
        return entry
    return {key: shard_like(value, live) if isinstance(value, torch.Tensor) else value for key, value in entry.items()}
