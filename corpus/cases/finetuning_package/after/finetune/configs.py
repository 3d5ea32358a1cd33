from dataclasses import dataclass


@dataclass
class train_config:
    enable_fsdp: bool = False
    num_steps: int = 6
    batch_size: int = 4
    lr: float = 1e-2
    weight_decay: float = 0.1
    gamma: float = 0.9
    mixed_precision: bool = True
    gradient_clipping: bool = True
    gradient_clipping_threshold: float = 100.0
    seed: int = 42
    output_dir: str = "checkpoints"


@dataclass
class fsdp_config:
    sharding_strategy: str = "FULL_SHARD"
    # FULL_STATE_DICT writes one file, SHARDED_STATE_DICT a folder with one file per rank
    checkpoint_type: str = "FULL_STATE_DICT"
    fsdp_activation_checkpointing: bool = True
    fsdp_cpu_offload: bool = False
    pure_bf16: bool = False
