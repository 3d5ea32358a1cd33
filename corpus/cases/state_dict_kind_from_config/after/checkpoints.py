import os

import torch
import torch.distributed as dist
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_optimizer_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
)


class Checkpoints:
    """Keeps one file for all ranks ("full") or one file for each rank ("sharded"), as the configuration says."""

    def __init__(self, model, optimizer, config):
        self.model = model
        self.optimizer = optimizer
        self.folder = config["folder"]
        if config["kind"] == "full":
            self.state_dict_type = "FULL_STATE_DICT"
            self.model_config = StateDictOptions(full_state_dict=True, cpu_offload=True)
            self.optimizer_config = StateDictOptions(full_state_dict=True, cpu_offload=True)
        elif config["kind"] == "sharded":
            self.state_dict_type = "SHARDED_STATE_DICT"
            self.model_config = StateDictOptions()
            self.optimizer_config = StateDictOptions()
        else:
            raise ValueError(f"checkpoints are full or sharded, not {config['kind']}")
        assert self.state_dict_type in ("FULL_STATE_DICT", "SHARDED_STATE_DICT"), self.state_dict_type

    @property
    def is_full(self):
        return self.state_dict_type == "FULL_STATE_DICT"

    @property
    def path(self):
        name = "all.pt" if self.is_full else f"rank{dist.get_rank()}.pt"
        return os.path.join(self.folder, name)

    def save(self, step):
        model_state = get_model_state_dict(self.model, options=self.model_config)
        optimizer_state = get_optimizer_state_dict(
            self.model, self.optimizer, options=self.optimizer_config
        )
        if not self.is_full or dist.get_rank() == 0:
            os.makedirs(self.folder, exist_ok=True)
            torch.save({"step": step, "model": model_state, "optimizer": optimizer_state}, self.path)

    def load(self):
        """Takes up what was saved, and returns the number of steps that it has seen."""
        if not os.path.exists(self.path):
            return 0
        state = torch.load(self.path, weights_only=False)
        set_model_state_dict(
            self.model,
            state["model"],
            options=StateDictOptions(full_state_dict=self.state_dict_type == "FULL_STATE_DICT"),
        )
        set_optimizer_state_dict(
            self.model,
            self.optimizer,
            state["optimizer"],
            options=StateDictOptions(full_state_dict=self.state_dict_type == "FULL_STATE_DICT"),
        )
        return state["step"]
