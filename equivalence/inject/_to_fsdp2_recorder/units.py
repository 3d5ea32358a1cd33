"""The units of a sharded model: what is gathered together, what stays gathered, over which ranks it is sharded.

None of it shows in the numbers of a training run, and all of it in its memory and its traffic.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch.distributed as dist
from torch import nn

from .models import is_fsdp1, is_fsdp2


def units_of(modules: Iterable[tuple[str, nn.Module]]) -> list[dict[str, Any]]:
    """One entry for each unit with parameters, from (canonical path, module) pairs.

    `module` (its path), `class`, `elements` (of the whole unit), `kept` (from forward to backward), and `ranks`: those
    that hold the shards, this one alone where the unit is not sharded.
    """
    found: list[dict[str, Any]] = []
    seen: set[int] = set()
    for path, module in modules:
        if is_fsdp1(module):
            entries = _fsdp1(module, seen)
        elif is_fsdp2(module):
            entries = _fsdp2(module, seen)
        else:
            continue
        found += ({"module": path, **entry} for entry in entries)
    return found


def _fsdp1(module: Any, seen: set[int]) -> Iterable[dict[str, Any]]:
    handle = getattr(module, "_handle", None)
    if handle is None or id(handle) in seen:
        return
    seen.add(id(handle))
    strategy = handle._sharding_strategy.name
    sharded = handle.uses_sharded_strategy
    yield {
        "class": type(module._fsdp_wrapped_module).__name__,
        "elements": sum(shape.numel() for shape in handle.flat_param._shapes),
        # FSDP1 does not reshard the root after forward, whatever its strategy.
        "kept": strategy not in ("FULL_SHARD", "HYBRID_SHARD") or bool(getattr(module, "_is_root", False)),
        "ranks": dist.get_process_group_ranks(handle.process_group) if sharded else [dist.get_rank()],
    }


def _fsdp2(module: Any, seen: set[int]) -> Iterable[dict[str, Any]]:
    state = module._get_fsdp_state()
    groups = getattr(state, "_fsdp_param_groups", None)
    if groups is None:
        groups = [state._fsdp_param_group] if state._fsdp_param_group is not None else []
    for group in groups:
        if id(group) in seen:
            continue
        seen.add(id(group))
        shards = getattr(group.mesh_info, "shard_process_group", None)
        yield {
            "class": type(module).__bases__[-1].__name__,
            "elements": sum(parameter._orig_size.numel() for parameter in group.fsdp_params),
            "kept": group.post_forward_mesh_info is None,
            "ranks": dist.get_process_group_ranks(shards) if shards is not None else [dist.get_rank()],
        }
