"""What `init_process_group` and `new_group` create in a verified run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch.distributed as dist
from torch.distributed import distributed_c10d

from .collectives import watch_functions
from .patching import Function, wrap
from .settings import Settings

ORDERED = "to_fsdp2_ordered"


class ProcessGroups:
    """What the script asked for, and whom to tell when it has it."""

    def __init__(self) -> None:
        self.asked: str | None = None
        self.sees_everything = False
        self.on_init: list[Callable[[], None]] = []


def install(settings: Settings) -> ProcessGroups:
    """Replace the backend as the settings say, and observe what is sent through it."""
    groups = ProcessGroups()
    if not dist.is_available():
        return groups
    ordered = settings.exact or bool(settings.emulate_cuda)
    substitute = ORDERED if ordered else "gloo" if settings.share_cuda else None
    if ordered:
        _register_ordered(settings)
        groups.sees_everything = True
    elif settings.record:
        watch_functions()
    wrap(distributed_c10d, "init_process_group", _initialising(groups, substitute))
    if substitute is not None:
        wrap(distributed_c10d, "new_group", _creating(groups, substitute))
        wrap(distributed_c10d, "is_nccl_available", lambda original: lambda: True)
        wrap(distributed_c10d, "barrier", _without("device_ids"))
    return groups


def _register_ordered(settings: Settings) -> None:
    from .ordered_group import OrderedGroup

    def create(store: Any, rank: int, size: int, timeout: Any) -> OrderedGroup:
        return OrderedGroup(store, rank, size, timeout, settings.perturb)

    devices = ["cpu"] if settings.emulate_cuda else ["cpu", "cuda"]
    dist.Backend.register_backend(ORDERED, create, devices=devices)


def _initialising(groups: ProcessGroups, substitute: str | None) -> Callable[[Function], Function]:
    def around(original: Function) -> Function:
        def init_process_group(backend: str | None = None, *args: Any, **kwargs: Any) -> None:
            if substitute is not None:
                kwargs = {name: value for name, value in kwargs.items() if name not in ("device_id", "pg_options")}
            original(substitute or backend, *args, **kwargs)
            groups.asked = backend
            if substitute is not None:
                _show_as(distributed_c10d._get_default_group(), backend or _default_backend())
            for tell in groups.on_init:
                tell()

        return init_process_group

    return around


def _creating(groups: ProcessGroups, substitute: str) -> Callable[[Function], Function]:
    def around(original: Function) -> Function:
        def new_group(
            ranks: Any = None, timeout: Any = None, backend: str | None = None, pg_options: Any = None, **kwargs: Any
        ) -> Any:
            kwargs.pop("device_id", None)
            group = original(ranks, timeout, substitute, None, **kwargs)
            if group in distributed_c10d._world.pg_map:
                _show_as(group, backend or groups.asked or _default_backend())
            return group

        return new_group

    return around


def _without(keyword: str) -> Callable[[Function], Function]:
    def around(original: Function) -> Function:
        def call(*args: Any, **kwargs: Any) -> Any:
            kwargs.pop(keyword, None)
            return original(*args, **kwargs)

        return call

    return around


def _show_as(group: Any, backend: str) -> None:
    """Let `dist.get_backend()` say what the script asked for: scripts and torch itself decide by it."""
    name = "nccl" if "nccl" in backend.lower() else "gloo"
    world = distributed_c10d._world
    world.pg_map[group] = (name, world.pg_map[group][1])


def _default_backend() -> str:
    import torch

    return "nccl" if torch.cuda.is_available() else "gloo"
