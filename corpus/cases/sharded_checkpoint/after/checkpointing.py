import os
import re

import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import (
    get_model_state_dict,
    get_optimizer_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
)


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
            "model": get_model_state_dict(model),
            "optimizer": get_optimizer_state_dict(model, optimizer),
        }
        dcp.save(state_dict, storage_writer=dcp.FileSystemWriter(self._path(step)))
        if dist.get_rank() == 0:
            print(f"saved step {step}")

    def load(self, model, optimizer, step):
        reader = dcp.FileSystemReader(self._path(step))
        state_dict = {"model": get_model_state_dict(model)}
        dcp.load(state_dict, storage_reader=reader)
        set_model_state_dict(model, state_dict["model"])

        # the optimizer state is resharded from what the model looks like now
        optim_state = {"optimizer": get_optimizer_state_dict(model, optimizer)}
        dcp.load(optim_state, storage_reader=reader)
        set_optimizer_state_dict(model, optimizer, optim_state["optimizer"])
        if dist.get_rank() == 0:
            print(f"continue at step {step}")
