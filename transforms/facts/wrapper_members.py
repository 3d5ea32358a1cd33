"""Attributes that all modules have, and objects of the old wrappers beside those, as torch 2.13 makes them."""

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
