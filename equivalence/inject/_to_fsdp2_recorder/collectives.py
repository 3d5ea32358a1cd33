"""What the ranks send each other: counts and bytes for the record, and the collective that a rank is in right now."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist

from .patching import Function, wrap

_TORCH = os.path.dirname(torch.__file__) + os.sep
_OURS = os.path.dirname(os.path.abspath(__file__)) + os.sep

# Function of torch.distributed: our name for the operation, and which argument holds the data that is counted.
_FUNCTIONS: dict[str, tuple[str, int, str]] = {
    "all_reduce": ("all_reduce", 0, "tensor"),
    "all_reduce_coalesced": ("all_reduce", 0, "tensors"),
    "all_gather": ("all_gather", 0, "tensor_list"),
    "all_gather_single": ("all_gather", 0, "output_tensor"),
    "all_gather_into_tensor": ("all_gather", 0, "output_tensor"),
    "_all_gather_base": ("all_gather", 0, "output_tensor"),
    "reduce_scatter": ("reduce_scatter", 1, "input_list"),
    "reduce_scatter_single": ("reduce_scatter", 1, "input"),
    "reduce_scatter_tensor": ("reduce_scatter", 1, "input"),
    "_reduce_scatter_base": ("reduce_scatter", 1, "input"),
    "broadcast": ("broadcast", 0, "tensor"),
    "reduce": ("reduce", 0, "tensor"),
    "gather": ("gather", 0, "tensor"),
    "scatter": ("scatter", 0, "tensor"),
    "all_to_all": ("all_to_all", 0, "output_tensor_list"),
    "all_to_all_single": ("all_to_all", 0, "output"),
    "send": ("send", 0, "tensor"),
    "isend": ("send", 0, "tensor"),
    "recv": ("recv", 0, "tensor"),
    "irecv": ("recv", 0, "tensor"),
    "barrier": ("barrier", -1, ""),
}


class Traffic:
    """Counts collectives between two steps. There is one per process."""

    def __init__(self) -> None:
        self.step = 0
        self.on_change: Callable[[dict[str, Any]], None] | None = None
        self._counts: dict[tuple[str, str], list[int]] = {}
        self._depth = 0
        self._number = 0

    @contextmanager
    def collective(self, op: str, tensors: Sequence[torch.Tensor], group: Any) -> Iterator[None]:
        """Wraps one collective; one that another one calls is part of it."""
        if self._depth:
            yield
            return
        dtype = str(tensors[0].dtype).removeprefix("torch.") if tensors else "none"
        size = sum(tensor.numel() * tensor.element_size() for tensor in tensors)
        count = self._counts.setdefault((op, dtype), [0, 0])
        count[0] += 1
        count[1] += size
        self._number += 1
        state = None
        if self.on_change is not None:
            state = {
                "number": self._number,
                "op": op,
                "group": _group_name(group),
                "dtype": dtype,
                "bytes": size,
                "step": self.step,
                "where": _user_line(),
                "since": time.time(),
                "done": False,
            }
            self.on_change(state)
        with self.silent():
            yield
        if self.on_change is not None and state is not None:
            self.on_change({**state, "done": True})

    @contextmanager
    def silent(self) -> Iterator[None]:
        """Collectives in here are not counted: they are part of another one, or our own."""
        self._depth += 1
        try:
            yield
        finally:
            self._depth -= 1

    def take(self) -> list[dict[str, Any]]:
        """What was counted since the last call, as in the `step` event."""
        counts, self._counts = self._counts, {}
        return [
            {"op": op, "dtype": dtype, "count": count, "bytes": size}
            for (op, dtype), (count, size) in sorted(counts.items())
        ]


traffic = Traffic()


def watch_functions() -> None:
    """Count the calls of torch.distributed's functions, where the process group is not ours and counts by itself.

    DDP's reducer calls its process group from C++ and stays unseen.
    """
    for name, (op, position, keyword) in _FUNCTIONS.items():
        wrap(dist.distributed_c10d, name, _watched(op, position, keyword))


def _watched(op: str, position: int, keyword: str) -> Callable[[Function], Function]:
    def around(original: Function) -> Function:
        def call(*args: Any, **kwargs: Any) -> Any:
            data = kwargs.get(keyword, args[position] if 0 <= position < len(args) else ())
            tensors = [data] if isinstance(data, torch.Tensor) else list(data)
            with traffic.collective(op, tensors, kwargs.get("group")):
                return original(*args, **kwargs)

        return call

    return around


def _group_name(group: Any) -> str:
    try:
        group = group or dist.group.WORLD
        return f"{group.group_name} ({group.size()} ranks)"
    except (AttributeError, ValueError, RuntimeError):
        return "not yet named"


def _user_line() -> str | None:
    """The innermost line on the stack that is neither torch's nor ours."""
    frame = sys._getframe(1)
    while frame is not None:
        file = frame.f_code.co_filename
        if not file.startswith((_TORCH, _OURS, "<")) and "contextlib" not in file:
            return f"{os.path.basename(file)}:{frame.f_lineno}"
        frame = frame.f_back
    return None
