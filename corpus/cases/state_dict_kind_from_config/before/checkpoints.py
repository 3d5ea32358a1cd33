import os

import torch
import torch.distributed as dist
from torch.distributed.fsdp import (
    FullOptimStateDictConfig,
    FullStateDictConfig,
    FullyShardedDataParallel,
    ShardedOptimStateDictConfig,
    ShardedStateDictConfig,
    StateDictType,
)


class Checkpoints:
    """Keeps one file for all ranks ("full") or one file for each rank ("sharded"), as the configuration says."""

    def __init__(self, model, optimizer, config):
        self.model = model
        self.optimizer = optimizer
        self.folder = config["folder"]
        if config["kind"] == "full":
            self.state_dict_type = StateDictType.FULL_STATE_DICT
            self.model_config = FullStateDictConfig(rank0_only=True, offload_to_cpu=torch.cuda.is_available())
            self.optimizer_config = FullOptimStateDictConfig(rank0_only=True, offload_to_cpu=torch.cuda.is_available())
        elif config["kind"] == "sharded":
            self.state_dict_type = StateDictType.SHARDED_STATE_DICT
            self.model_config = ShardedStateDictConfig()
            self.optimizer_config = ShardedOptimStateDictConfig(offload_to_cpu=False)
        else:
            raise ValueError(f"checkpoints are full or sharded, not {config['kind']}")
        FullyShardedDataParallel.set_state_dict_type(
            model, self.state_dict_type, self.model_config, self.optimizer_config
        )

    @property
    def is_full(self):
        return self.state_dict_type == StateDictType.FULL_STATE_DICT

    @property
    def path(self):
        name = "all.pt" if self.is_full else f"rank{dist.get_rank()}.pt"
        return os.path.join(self.folder, name)

    def save(self, step):
        model_state = self.model.state_dict()
        optimizer_state = FullyShardedDataParallel.optim_state_dict(self.model, self.optimizer)
        if not self.is_full or dist.get_rank() == 0:
            os.makedirs(self.folder, exist_ok=True)
            torch.save({"step": step, "model": model_state, "optimizer": optimizer_state}, self.path)

    def load(self):
        """Takes up what was saved, and returns the number of steps that it has seen."""
        if not os.path.exists(self.path):
            return 0
        state = torch.load(self.path, weights_only=False)
        self.model.load_state_dict(state["model"])
        optimizer_state = FullyShardedDataParallel.optim_state_dict_to_load(
            self.model, self.optimizer, state["optimizer"]
        )
        self.optimizer.load_state_dict(optimizer_state)
        return state["step"]
