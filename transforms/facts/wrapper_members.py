"""Attributes that all modules have, and objects of the old wrappers beside those, as torch 2.13 makes them."""

from .symbols import DDP, FSDP1

FSDP1_ONLY = frozenset(
    {"_all_fsdp_states", "_all_handles", "_buffer_name_to_orig_dtype", "_buffer_names", "_comm_hook", "_comm_hook_state",
     "_default_stream", "_device_handle", "_device_mesh", "_exec_order_data", "_fully_sharded_module_to_handle",
     "_has_params", "_ignored_modules", "_ignored_params", "_is_root", "_optim_state_dict_config", "_state_dict_config",
     "_state_dict_type", "_sync_gradients", "_unshard_params_ctx", "_use_orig_params", "backward_prefetch", "compute_device",
     "cpu_offload", "forward_prefetch", "limit_all_gathers", "mixed_precision", "training_state"}
)  # fmt: skip
DDP_ONLY = frozenset(
    {"_comm_hooks", "_ddp_init_helper", "_has_rebuilt_buckets", "_module_parameters", "_register_builtin_comm_hook",
     "_register_fused_optim", "_set_ddp_runtime_logging_sample_rate", "_sync_buffers", "_sync_final_model",
     "_sync_module_buffers", "broadcast_bucket_size", "bucket_bytes_cap", "gradient_as_bucket_view", "modules_buffers",
     "named_module_buffers", "output_device", "parameters_to_ignore", "static_graph"}
)  # fmt: skip
STATE_HOOKS = frozenset(
    {"_register_state_dict_hook", "register_state_dict_post_hook", "_register_load_state_dict_pre_hook",
     "register_load_state_dict_pre_hook"}
)  # fmt: skip
"""Methods of all modules; what they are given saw keys with ``module.`` in a wrapper of DDP."""
OF_BOTH = frozenset({"process_group"})
OF_ALL_MODULES = frozenset(
    {"train", "eval", "parameters", "named_parameters", "modules", "named_modules", "children", "named_children", "buffers",
     "named_buffers", "to", "cuda", "cpu", "float", "half", "bfloat16", "double", "type", "zero_grad", "requires_grad_",
     "apply", "register_buffer", "register_parameter", "register_forward_hook", "register_forward_pre_hook",
     "register_full_backward_hook", "register_full_backward_pre_hook", "register_backward_hook", "register_state_dict_pre_hook",
     "register_load_state_dict_post_hook", *STATE_HOOKS,
     "register_module", "add_module", "get_submodule", "set_submodule", "get_parameter", "get_buffer", "compile",
     "share_memory", "extra_repr", "set_extra_state", "get_extra_state", "to_empty", "forward", "__call__",
     "reshard", "unshard", "set_requires_gradient_sync", "set_requires_all_reduce", "set_is_last_backward",
     "set_modules_to_forward_prefetch", "set_modules_to_backward_prefetch", "set_reshard_after_forward",
     "_load_from_state_dict", "_save_to_state_dict", "_apply",
     "set_reshard_after_backward", "set_unshard_in_backward", "set_post_optim_event"}
)  # fmt: skip
"""Methods that every module has, or every model of FSDP2, and that mean the same there."""
MEMBERS: dict[str, str] = {
    "state_dict": "torch.nn.Module.state_dict",
    "load_state_dict": "torch.nn.Module.load_state_dict",
    "module": f"{DDP}.module",
    "zero_grad": "torch.nn.Module.zero_grad",
    "named_parameters": "torch.nn.Module.named_parameters",
    "named_buffers": "torch.nn.Module.named_buffers",
    "named_modules": "torch.nn.Module.named_modules",
    "no_sync": f"{DDP}.no_sync",
    "clip_grad_norm_": f"{FSDP1}.clip_grad_norm_",
    "require_backward_grad_sync": f"{DDP}.require_backward_grad_sync",
    "require_forward_param_sync": f"{DDP}.require_forward_param_sync",
    "summon_full_params": f"{FSDP1}.summon_full_params",
    "apply": f"{FSDP1}.apply",
    "state_dict_type": f"{FSDP1}.state_dict_type",
    "set_state_dict_type": f"{FSDP1}.set_state_dict_type",
    "get_state_dict_type": f"{FSDP1}.get_state_dict_type",
    "fsdp_modules": f"{FSDP1}.fsdp_modules",
    "optim_state_dict": f"{FSDP1}.optim_state_dict",
    "optim_state_dict_to_load": f"{FSDP1}.optim_state_dict_to_load",
    "register_comm_hook": f"{DDP}.register_comm_hook",
    "join": f"{DDP}.join",
    "consolidate_state_dict": "torch.distributed.optim.ZeroRedundancyOptimizer.consolidate_state_dict",
    "_set_static_graph": f"{DDP}._set_static_graph",
    "reducer": f"{DDP}.reducer",
    "will_sync_module_buffers": f"{DDP}.will_sync_module_buffers",
    "_get_ddp_logging_data": f"{DDP}._get_ddp_logging_data",
    "_fsdp_wrapped_module": f"{FSDP1}._fsdp_wrapped_module",
    "_handle": f"{FSDP1}._handle",
    "_handles": f"{FSDP1}._handles",
    "flat_param": f"{FSDP1}.flat_param",
    "_flat_param": f"{FSDP1}._flat_param",
    "_fsdp_flattened": f"{FSDP1}._fsdp_flattened",
    "_fqns": f"{FSDP1}._fqns",
    "_param_infos": f"{FSDP1}._param_infos",
    "_shard_param_infos": f"{FSDP1}._shard_param_infos",
    "sharding_strategy": f"{FSDP1}.sharding_strategy",
    "check_is_root": f"{FSDP1}.check_is_root",
    "rank": f"{FSDP1}.rank",
    "world_size": f"{FSDP1}.world_size",
    "process_group": f"{FSDP1}.process_group",
    "device_ids": f"{DDP}.device_ids",
    "device": f"{DDP}.device",
    "params": f"{FSDP1}.params",
    "find_unused_parameters": f"{DDP}.find_unused_parameters",
    "broadcast_buffers": f"{DDP}.broadcast_buffers",
    **{name: f"{FSDP1}.{name}" for name in sorted(FSDP1_ONLY)},
    **{name: f"{DDP}.{name}" for name in sorted(DDP_ONLY | STATE_HOOKS)},
}
"""Members of wrapped models and their optimizers that mean something else, or nothing, on a model of FSDP2."""
ONLY_KNOWN = frozenset(
    {"apply", "join", "reducer", "named_parameters", "named_buffers", "named_modules", "device", "params", "rank", "world_size",
     "process_group", "device_ids", "find_unused_parameters", "broadcast_buffers", "sharding_strategy", "state_dict_type",
     "set_state_dict_type", "get_state_dict_type", "fsdp_modules", "optim_state_dict", "optim_state_dict_to_load",
     *FSDP1_ONLY, *DDP_ONLY, *STATE_HOOKS}
)  # fmt: skip
"""Members whose names say nothing about their owner: a site only where a wrapped model is known to come."""
