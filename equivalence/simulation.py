"""What lets a training step run without memory, devices or other ranks: see plan, which puts it together."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor, unset_fake_temporarily
from torch.distributed._tools.mem_tracker import MemTracker
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from .verdict import Traffic

_OPERATIONS = {
    "allgather": "all_gather",
    "all_gather": "all_gather",
    "reduce_scatter": "reduce_scatter",
    "allreduce": "all_reduce",
    "all_reduce": "all_reduce",
    "broadcast": "broadcast",
    "alltoall": "all_to_all",
    "all_to_all": "all_to_all",
}


class MadeUpValues(TorchDispatchMode):
    """Answers `.item()`, `float()` and `bool()` of a tensor without memory, so that a step's logging can run."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if _has_dtensor(types):
            return NotImplemented
        if func is torch.ops.aten._local_scalar_dense.default and isinstance(args[0], FakeTensor):
            if args[0].dtype == torch.bool:
                return False
            return 1.0 if args[0].dtype.is_floating_point else 1
        return func(*args, **(kwargs or {}))


class Collectives(TorchDispatchMode):
    """Counts the collectives that pass, by kind and dtype."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: dict[tuple[str, str], Traffic] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if _has_dtensor(types):
            return NotImplemented
        result = func(*args, **(kwargs or {}))
        if func.namespace in ("c10d", "_c10d_functional"):
            self._count(str(func), [*args, result])
        return result

    def _count(self, name: str, values: list[Any]) -> None:
        operation = name.split(".")[1].strip("_")
        kind = next((kind for start, kind in _OPERATIONS.items() if operation.startswith(start)), None)
        groups = [[leaf for leaf in tree_leaves(value) if isinstance(leaf, torch.Tensor)] for value in values]
        if kind is None or not any(groups):
            return
        # The whole is the output of an all-gather and the input of a reduce-scatter, as one tensor or as a list.
        whole = max(groups, key=bytes_of)
        key = kind, str(whole[0].dtype).removeprefix("torch.")
        entry = self.seen.setdefault(key, Traffic(*key, calls=0, bytes=0))
        entry.calls += 1
        entry.bytes += bytes_of(whole)

    def traffic(self) -> list[Traffic]:
        return [self.seen[key] for key in sorted(self.seen)]


def bytes_of(tensors: Sequence[torch.Tensor]) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def _has_dtensor(types: Sequence[type]) -> bool:
    """A mode that declines such a call sees the calls that DTensor makes for it, collectives among them."""
    return any(issubclass(cls, DTensor) for cls in types)


@contextmanager
def real_meshes() -> Iterator[None]:
    """Lets device meshes be made among fake tensors: a mesh computes with the ranks in it, which must be real.

    `init_device_mesh` hands over the ranks in order, as a tensor that is fake by then and is made again here.
    """
    original = DeviceMesh.__init__

    def real(value: Any) -> Any:
        return (
            torch.arange(value.numel(), dtype=torch.int).view(value.shape) if isinstance(value, FakeTensor) else value
        )

    def initialize(self: DeviceMesh, *args: Any, **kwargs: Any) -> None:
        with unset_fake_temporarily():
            original(self, *(real(value) for value in args), **{key: real(value) for key, value in kwargs.items()})

    DeviceMesh.__init__ = initialize
    try:
        yield
    finally:
        DeviceMesh.__init__ = original


@contextmanager
def several_forwards(tracker: MemTracker | None, model: torch.nn.Module) -> Iterator[None]:
    """Lets a step run the model more than once (gradient accumulation).

    The tracker keeps statistics of each module and refuses to overwrite those of the root; only the peak of the
    whole step is wanted here, so those of the root are dropped before each forward pass.
    """

    original = torch.nn.Module.__call__

    def call(self: torch.nn.Module, *args: Any, **kwargs: Any) -> Any:
        if self is model and tracker is not None:
            tracker.memory_tracking.pop(model, None)
        return original(self, *args, **kwargs)

    # Not a hook of the module: the tracker's own hooks come before those.
    torch.nn.Module.__call__ = call
    try:
        yield
    finally:
        torch.nn.Module.__call__ = original
