"""What ranks may answer differently, made the same on all of them."""

import time
from collections.abc import Callable
from typing import Any
from weakref import WeakKeyDictionary

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import PrefixStore, _get_default_store
from torch.distributed.tensor import DTensor


def true_on_any_rank(condition: Any, group: Any = None) -> bool:
    """Whether `condition` is true on some rank (of a group): for what all of them then do together. Every one calls it.

    Where models are held whole, one rank may be alone here, and answers for itself: nothing has to be gathered.
    """
    is_held = getattr(DTensor, "_models_held", 0) or getattr(DTensor, "_all_is_whole", False)
    if is_held or not dist.is_initialized():
        return bool(condition)
    answer = torch.tensor(bool(condition), dtype=torch.uint8, device=_device())
    dist.all_reduce(answer, dist.ReduceOp.MAX, group)
    return bool(answer)


def meeting_of_all_ranks() -> Callable[[], bool]:
    """Returns what waits until every rank calls it, for a day at most, and says whether all of them still have a process group.

    A collective would end with the group's timeout, ten minutes by default, while one rank may still work alone. A rank that
    has ended its process group meanwhile is through with the others: it says so, and does not wait.
    """
    if not dist.is_initialized():
        return lambda: True
    store, count = PrefixStore("all_ranks", _get_default_store()), dist.get_world_size()

    def meet() -> bool:
        if not dist.is_initialized():
            store.set("left", "")
        if store.check(["left"]):
            return False
        arrived = store.add("arrived", 1)
        times = (arrived - 1) // count
        if arrived % count == 0:
            store.set(f"complete/{times}", "")
            store.delete_key(f"complete/{times - 1}")
        end = time.monotonic() + 24 * 60 * 60
        while not store.check([f"complete/{times}"]):
            if store.check(["left"]):
                return store.check([f"complete/{times}"])
            if time.monotonic() > end:
                raise TimeoutError("a rank waited for a day for others that work alone")
            time.sleep(0.01)
        return True

    return meet


def ranks_where(conditions: list[bool]) -> list[list[int]]:
    """For each of these conditions the ranks on which it is true. Every rank calls it, with as many."""
    if not dist.is_initialized() or not conditions:
        return [[0] if condition else [] for condition in conditions]
    mine = torch.tensor(conditions, dtype=torch.uint8, device=_device())
    answers = [torch.empty_like(mine) for _ in range(dist.get_world_size())]
    dist.all_gather(answers, mine)
    by_condition = torch.stack(answers, 1).tolist()
    return [[rank for rank, answer in enumerate(of_ranks) if answer] for of_ranks in by_condition]


def from_rank(rank: int, value: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """What one of the ranks has for `value`, in a dtype that they agree about. Every rank calls it."""
    sent = value.detach().to(_device(), dtype, copy=True, memory_format=torch.contiguous_format)
    dist.broadcast(sent, src=rank)
    return sent


def _device() -> Any:
    """Where tensors have to be for the process group to send them."""
    return "cpu" if "cpu" in dist.get_backend_config() else torch.accelerator.current_accelerator()


def held_by_all_ranks(found: list[Any]) -> list[Any]:
    """Of these objects, in the order of their making, those that all ranks still have: one may keep what others dropped.

    Objects get numbers when they are first seen. What is new on one rank alone was made before what is new on all.
    """
    if not dist.is_initialized():
        return found
    numbers: Any = getattr(DTensor, "_numbers", None) or WeakKeyDictionary()
    start: int = getattr(DTensor, "_next_number", 0)
    new = [held for held in found if held not in numbers]
    ranks: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(ranks, ([numbers[held] for held in found if held in numbers], len(new)))
    made = min(count for _, count in ranks)
    numbers.update((held, start + place) for place, held in enumerate(new[len(new) - made :]))
    DTensor._numbers = numbers  # pyright: ignore[reportAttributeAccessIssue]
    DTensor._next_number = start + made  # pyright: ignore[reportAttributeAccessIssue]
    common = set.intersection(*(set(known) for known, _ in ranks)) | set(range(start, start + made))
    return [held for held in found if numbers.get(held) in common]
