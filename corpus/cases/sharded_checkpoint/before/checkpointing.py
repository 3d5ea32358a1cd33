import os
import re

import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.optimizer import load_sharded_optimizer_state_dict
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


class Checkpointer:
    """Folders `step_N` with one file per rank."""

    def __init__(self, folder):
        self.folder = folder

    def latest(self):
        """The number of the last saved step, None when there is none."""
        if not os.path.isdir(self.folder):
            return None
        steps = [int(m.group(1)) for m in map(re.compile(r"step_(\d+)$").match, os.listdir(self.folder)) if m]
        return max(steps, default=None)

    def _path(self, step):
        return os.path.join(self.folder, f"step_{step}")

    def save(self, model, optimizer, step):
        state_dict = {
            "model": model.state_dict(),
            "optimizer": FSDP.optim_state_dict(model, optimizer),
        }
        dcp.save_state_dict(state_dict, dcp.FileSystemWriter(self._path(step)))
        if dist.get_rank() == 0:
            print(f"saved step {step}")

    def load(self, model, optimizer, step):
        reader = dcp.FileSystemReader(self._path(step))
        state_dict = {"model": model.state_dict()}
        dcp.load_state_dict(state_dict, reader)
        model.load_state_dict(state_dict["model"])

        # the optimizer state is resharded from what the model looks like now
        optim_state = load_sharded_optimizer_state_dict(
            model_state_dict=state_dict["model"], optimizer_key="optimizer", storage_reader=reader
        )
        flattened = FSDP.optim_state_dict_to_load(model, optimizer, optim_state["optimizer"])
        optimizer.load_state_dict(flattened)
        if dist.get_rank() == 0:
            print(f"continue at step {step}")
