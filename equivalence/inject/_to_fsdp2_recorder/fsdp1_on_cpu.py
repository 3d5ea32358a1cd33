"""Work around what FSDP1 gets wrong without an accelerator, so that the old side of a comparison is right.

Seen in torch 2.13 on gloo: construction is refused without `device_id=torch.device("cpu")`; `sync_module_states` and
`CPUOffload` are refused; `.cpu()` is no copy there, so what FSDP1 "offloads" to the CPU shares a buffer that it frees
(the process dies) or reuses (`optim_state_dict` returns `exp_avg_sq` in the place of `exp_avg`).
"""

from __future__ import annotations

import os
from typing import Any

import torch

from .after_import import after_import
from .patching import Function, changed_arguments, wrap


def install() -> None:
    """Take effect once the script imports torch.distributed.fsdp."""
    after_import("torch.distributed.fsdp", _install)


def _install() -> None:
    import torch.distributed.fsdp as fsdp
    from torch.distributed.fsdp import _init_utils

    wrap(fsdp.FullyShardedDataParallel, "__init__", changed_arguments(_construct))
    wrap(fsdp.FullyShardedDataParallel, "summon_full_params", changed_arguments(_keep_in_place))
    # Its only purpose is to refuse CPU tensors, which gloo broadcasts well.
    wrap(_init_utils, "_check_module_states_for_sync_module_states", lambda original: lambda *args: None)
    wrap(_init_utils, "_init_intra_and_inter_node_groups", _local_world)
    for kind in ("Full", "Sharded"):
        for content in ("StateDictConfig", "OptimStateDictConfig"):
            wrap(getattr(fsdp, kind + content), "__init__", _without_offload)
    offload = getattr(fsdp, "CPUOffloadPolicy", None)
    if offload is not None:
        wrap(offload, "__init__", lambda original: lambda self, pin_memory=False: original(self, pin_memory=False))


def _construct(kwargs: dict[str, Any]) -> None:
    kwargs["device_id"] = torch.device("cpu")
    kwargs.pop("cpu_offload", None)


def _keep_in_place(kwargs: dict[str, Any]) -> None:
    kwargs["offload_to_cpu"] = False


def _without_offload(original: Function) -> Function:
    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        self.offload_to_cpu = False

    return init


def _local_world(original: Function) -> Function:
    """HYBRID_SHARD shards within a node, whose size FSDP1 takes from the number of accelerators."""

    def init(group: Any, devices: int) -> Any:
        return original(group, int(os.environ.get("LOCAL_WORLD_SIZE", devices)))

    return init
