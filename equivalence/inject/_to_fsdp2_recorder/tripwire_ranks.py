"""Calls that gather, made by some ranks only: the others never answer, or answer something else.

The script's own collectives count as well: they are what the other ranks go on to.

Every rank writes the name of its n-th such call to the store of the process group and looks at the n-th of rank 0 and of
its neighbours. Nobody waits, so that a late rank is no finding.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from .after_import import after_import
from .patching import Function, wrap
from .places import called_by_user, user_place
from .tripwires import Tripwires

_HELPERS = (
    "get_state_dict", "get_model_state_dict", "get_optimizer_state_dict", "set_state_dict", "set_model_state_dict",
    "set_optimizer_state_dict",
)  # fmt: skip
_COLLECTIVES = (
    "barrier", "monitored_barrier", "all_reduce", "broadcast", "reduce", "all_gather", "all_gather_into_tensor", "gather",
    "scatter", "reduce_scatter", "reduce_scatter_tensor", "all_to_all", "all_to_all_single", "all_gather_object",
    "broadcast_object_list", "gather_object", "scatter_object_list",
)  # fmt: skip
MARKER = "uneven"
"""File in the record's directory that says that ranks do not make the same calls: they may wait for ever."""


def install(wires: Tripwires) -> None:
    guard = _Guard(wires)
    for name in _COLLECTIVES:
        wrap(dist, name, lambda original: _watched_collective(guard, original))
    after_import("torch.distributed.fsdp", lambda: _watch_forward(guard))
    after_import("torch.distributed.tensor", lambda: _watch_full_tensor(guard))
    after_import("torch.distributed.checkpoint.state_dict", lambda: _watch_helpers(guard))


class _Guard:
    def __init__(self, wires: Tripwires) -> None:
        self._wires = wires
        self._number = 0
        self._inside = 0
        self._fired = False

    @contextmanager
    def call(self, name: Callable[[], str], spans_all: bool) -> Iterator[None]:
        """One collective call, compared if it is one of all ranks; what it calls in turn belongs to it."""
        if not self._inside and not self._fired and spans_all:
            self._compare(name())
        self._inside += 1
        try:
            yield
        finally:
            self._inside -= 1

    def _compare(self, name: str) -> None:
        place = user_place(self._wires.root)
        store: Any = dist.distributed_c10d._get_default_store()
        rank, world, number = dist.get_rank(), dist.get_world_size(), self._number
        self._number += 1
        store.set(_key(number, rank), f"{name}|{place}")
        for other in {0, (rank - 1) % world, (rank + 1) % world} - {rank}:
            if not store.check([_key(number, other)]):
                continue
            theirs, _, there = store.get(_key(number, other)).decode().rpartition("|")
            if theirs != name:
                self._fired = True
                if store.add("to_fsdp2/uneven", 1) > 1:  # both ranks can see it at once; one tells of it, with both lines
                    return
                text = (
                    f"has rank {rank} make {name}, while rank {other} makes {theirs} ({there}): what gathers has to be "
                    "called by all ranks, in the same order"
                )
                self._wires.fire("ranks", "FS705", text, place)
                (Path(self._wires.recorder.settings.record or ".") / MARKER).touch()
                return


def _key(number: int, rank: int) -> str:
    return f"to_fsdp2/{number}/{rank}"


def _spans_all(mesh: Any) -> bool:
    return dist.is_initialized() and mesh is not None and mesh.size() == dist.get_world_size() > 1


def _watched_collective(guard: _Guard, original: Function) -> Function:
    signature = inspect.signature(original)

    def collective(*args: Any, **kwargs: Any) -> Any:
        if not called_by_user() or not dist.is_initialized() or dist.get_world_size() == 1:
            return original(*args, **kwargs)
        group = signature.bind_partial(*args, **kwargs).arguments.get("group")
        with guard.call(lambda: f"{original.__name__}()", group is None or group is dist.group.WORLD):
            return original(*args, **kwargs)

    return collective


def _watch_forward(guard: _Guard) -> None:
    try:
        from torch.distributed.fsdp._fully_shard._fsdp_state import FSDPState
    except ImportError:  # before torch 2.7 fully_shard lay elsewhere
        return

    def around(original: Function) -> Function:
        def root_pre_forward(state: Any, module: Any, *args: Any) -> Any:
            context = getattr(state, "_state_ctx", None)
            if context is not None and context.iter_forward_root is not None:
                return original(state, module, *args)
            method = _registered_method()
            states = [state, *(context.all_states if context is not None else [])]
            groups = [group for one in states for group in getattr(one, "_fsdp_param_groups", None) or []]
            mesh = groups[0].mesh_info.mesh if groups else None

            def name() -> str:
                mode = "training" if module.training else "evaluating"
                gradients = "" if torch.is_grad_enabled() else ", no gradients"
                return f"{method}() of {type(module).__bases__[-1].__name__} ({mode}{gradients})"

            with guard.call(name, _spans_all(mesh)):
                return original(state, module, *args)

        return root_pre_forward

    wrap(FSDPState, "_root_pre_forward", around)


def _registered_method() -> str:
    """The name of the method through which the forward hooks were run (register_fsdp_forward_method), else forward."""
    frame = sys._getframe(2)
    for _ in range(6):
        if frame is None:
            break
        if frame.f_code.co_name == "wrapped_method" and "orig_method" in frame.f_locals:
            return frame.f_locals["orig_method"].__name__
        frame = frame.f_back
    return "forward"


def _watch_full_tensor(guard: _Guard) -> None:
    from torch.distributed.tensor import DTensor

    def around(original: Function) -> Function:
        def full_tensor(tensor: Any, *args: Any, **kwargs: Any) -> Any:
            name = f"full_tensor() of a tensor of shape {tuple(tensor.shape)}"
            with guard.call(lambda: name, _spans_all(tensor.device_mesh)):
                return original(tensor, *args, **kwargs)

        return full_tensor

    wrap(DTensor, "full_tensor", around)


def _watch_helpers(guard: _Guard) -> None:
    import torch.distributed.checkpoint.state_dict as helpers

    def around(name: str) -> Any:
        def wrapper(original: Function) -> Function:
            def call(model: Any, *args: Any, **kwargs: Any) -> Any:
                meshes = (p.device_mesh for p in model.parameters() if hasattr(p, "device_mesh"))
                with guard.call(lambda: f"{name}()", _spans_all(next(meshes, None))):
                    return original(model, *args, **kwargs)

            return call

        return wrapper

    for name in _HELPERS:
        wrap(helpers, name, around(name))
