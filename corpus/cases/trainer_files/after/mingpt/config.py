"""Configuration with `section.key=value` overrides from the command line."""

import ast
from dataclasses import dataclass, field


@dataclass
class ModelConfig:
    n_layer: int = 3
    n_head: int = 2
    n_embd: int = 24
    seed: int = 3407


@dataclass
class TrainerConfig:
    max_iters: int = 6
    batch_size: int = 8
    micro_batches: int = 3
    learning_rate: float = 5e-3
    grad_norm_clip: float = 0.7
    out_dir: str = "out"
    resume: bool = False


@dataclass
class Config:
    model: ModelConfig = field(default_factory=ModelConfig)
    trainer: TrainerConfig = field(default_factory=TrainerConfig)

    def merge_from_args(self, args):
        for arg in args:
            name, _, value = arg.partition("=")
            section, _, key = name.partition(".")
            assert hasattr(getattr(self, section), key), f"{name} is not a setting"
            setattr(getattr(self, section), key, ast.literal_eval(value))
