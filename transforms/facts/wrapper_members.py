"""Attributes that objects of the old wrappers have beside those of all modules, as torch 2.13 makes them."""

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
OF_BOTH = frozenset({"process_group"})
