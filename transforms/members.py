"""Names of the wrappers' attributes and methods: which of them make a use of a model a site."""

from __future__ import annotations

MEMBERS: frozenset[str] = frozenset(
    {
        "module", "no_sync", "state_dict", "load_state_dict", "require_backward_grad_sync", "forward",
        "require_forward_param_sync", "join", "join_hook", "join_device", "join_process_group",
        "register_comm_hook", "summon_full_params", "clip_grad_norm_", "state_dict_type", "set_state_dict_type",
        "get_state_dict_type", "optim_state_dict", "full_optim_state_dict", "sharded_optim_state_dict",
        "optim_state_dict_to_load", "shard_full_optim_state_dict", "flatten_sharded_optim_state_dict",
        "scatter_full_optim_state_dict", "rekey_optim_state_dict", "check_is_root", "fsdp_modules", "flat_param",
        "will_sync_module_buffers", "gradient_as_bucket_view", "find_unused_parameters", "device_ids",
        "process_group", "broadcast_buffers", "static_graph", "scatter", "gather", "to_kwargs", "mixed_precision",
        "sharding_strategy", "backward_prefetch", "forward_prefetch", "limit_all_gathers", "training_state",
        "bucket_bytes_cap", "reducer", "logger", "parameters_to_ignore", "output_device",
    }
)  # fmt: skip
"""Attributes of a wrapped model whose use is a site."""

RAW_MEMBERS: frozenset[str] = frozenset({"state_dict", "load_state_dict"})
"""Attributes of the unwrapped model whose use is a site once the model is sharded in place."""

UNIQUE_MEMBERS: frozenset[str] = frozenset(
    {
        "no_sync", "require_backward_grad_sync", "summon_full_params", "state_dict_type", "set_state_dict_type",
        "clip_grad_norm_", "optim_state_dict", "full_optim_state_dict", "sharded_optim_state_dict",
        "optim_state_dict_to_load", "shard_full_optim_state_dict", "flatten_sharded_optim_state_dict",
        "scatter_full_optim_state_dict", "rekey_optim_state_dict", "fsdp_modules", "require_forward_param_sync",
        "_fsdp_wrapped_module", "flat_param", "consolidate_state_dict", "check_is_root",
    }
)  # fmt: skip
"""Names that only the old wrappers have: a use is a site even where nothing is known of the receiver."""

OF_DDP: frozenset[str] = frozenset(
    {
        "module", "no_sync", "forward", "require_backward_grad_sync", "require_forward_param_sync", "join", "join_hook",
        "join_device", "join_process_group", "register_comm_hook", "will_sync_module_buffers", "gradient_as_bucket_view",
        "find_unused_parameters", "device_ids", "process_group", "broadcast_buffers", "static_graph", "scatter", "gather",
        "to_kwargs", "mixed_precision", "bucket_bytes_cap", "reducer", "logger", "parameters_to_ignore", "output_device",
    }
)  # fmt: skip
"""Attributes that models under DDP have beside those of every module."""

_PRIVATE_PARTS = (
    "fsdp", "handle", "flat_param", "shard", "ddp", "bucket", "_sync_", "lazy_init", "exec_order", "is_root",
    "static_graph", "comm_hook", "fused_optim", "optim_state_dict", "mixed_precision", "wrapped_module", "fpw_module",
    "summon", "reducer", "process_group", "use_orig_params",
)  # fmt: skip
_PRIVATE_PARTS_OF_DDP = ("ddp", "bucket", "_sync_", "static_graph", "comm_hook", "fused_optim", "reducer")


def is_private(name: str) -> bool:
    """Whether a name is one of the wrappers' own private ones, as opposed to the model's."""
    return name.startswith("_") and not name.startswith("__") and any(part in name for part in _PRIVATE_PARTS)


def is_of_ddp(name: str) -> bool:
    """Whether models under DDP have an attribute of this name beside those of every module."""
    return name in OF_DDP or (is_private(name) and any(part in name for part in _PRIVATE_PARTS_OF_DDP))
