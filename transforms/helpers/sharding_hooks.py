"""fully_shard's hooks, and those that stand in for DDP around it: which hooks they are, and code that runs without them."""

import functools
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import nn
from torch.distributed.fsdp import FSDPModule

MAKERS_OF_HOOKS = frozenset(
    {"ShardedLikeFSDP1", "_await_backward", "_compare_forward", "_joined", "_keep_gradients_sharded",
     "_keep_whole", "_keep_writes", "_read_sync", "load_model_state",
     "_running_hooks", "_sharing",
     "_shard_entries", "_summed", "_weigh_gradients", "_whole_model", "_whole_parameters", "_with_prefix", "after_backward",
     "allow_double_backward", "gather_once_in_evaluation",
     "allow_inference_first", "broadcast_buffers_before_forward", "drop_unused_gradients", "enter_by_objects", "gather_for_parts",
     "gather_irregular_blocks", "keep_state_dicts_whole", "learn_in_precision", "live_state",
     "on_all_ranks", "read_sync_at_forwards", "register_comm_hook", "reshard_after_evaluation", "reshard_after_forward",
     "return_no_views", "step_on_parts", "step_on_whole", "watch_memory", "_require_unwritten", "whole", "zeros_for_unused"}
)  # fmt: skip
"""The functions here that give a model hooks."""


@contextmanager
def without_sharding_hooks(module: nn.Module) -> Iterator[None]:
    """Inside, forwards and methods of `module` run on what is registered as its parameters, and leave that as it is.

    fully_shard's mark `_is_fsdp_managed_module` goes meanwhile: by it generate() of transformers asks all other ranks, after
    each token, whether they are through.
    """
    units: list[Any] = [m for m in module.modules() if isinstance(m, FSDPModule)]
    kept = [h for m in module.modules() for h in (m._forward_pre_hooks, m._forward_hooks, m._load_state_dict_post_hooks) if h]
    hooks: list[tuple[Any, Any]] = [(h, h.copy()) for h in kept]
    methods = [  # needed for: forward_methods
        (unit, name, method)
        for unit in units
        for name, method in vars(unit).items()
        if getattr(method, "__self__", None) is unit and hasattr(method, "__wrapped__")  # register_fsdp_forward_method
    ]
    managed = [m for m in module.modules() if vars(m).pop("_is_fsdp_managed_module", False)]  # needed for: transformers
    held = [getattr(unit, "_held_whole", False) for unit in units]
    try:
        for current, saved in hooks:
            for key in [key for key, hook in saved.items() if is_of_sharding(hook)]:
                del current[key]
        for unit in units:
            unit._held_whole = True
        for unit, name, _ in methods:  # needed for: forward_methods
            delattr(unit, name)
        yield
    finally:
        for current, saved in hooks:  # of others than fully_shard, what was registered or removed inside stays so
            inside = dict(current)
            current.clear()
            current.update({key: hook for key, hook in saved.items() if key in inside or is_of_sharding(hook)} | inside)
        for unit, name, method in methods:  # needed for: forward_methods
            setattr(unit, name, method)
        for unit, was_held in zip(units, held, strict=True):
            unit._held_whole = was_held
        for part in managed:  # needed for: transformers
            part._is_fsdp_managed_module = True  # pyright: ignore


def is_of_sharding(hook: Any) -> bool:
    """Whether a hook belongs to fully_shard, or to what stands in for DDP around it."""
    while isinstance(hook, functools.partial):
        hook = hook.func
    origin = getattr(hook, "__module__", None) or ""
    package, _, name = __name__.rpartition(".")
    copied = origin.rpartition(".")[2] == name  # packages that do not import each other have a copy each
    is_ours = getattr(hook, "__qualname__", "").partition(".")[0] in MAKERS_OF_HOOKS  # other code of this file has hooks too
    return origin.startswith("torch.distributed.") or (is_ours and (copied or origin.startswith(f"{package}.")))
