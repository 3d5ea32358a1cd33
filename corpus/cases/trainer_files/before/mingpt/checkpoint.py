"""Model files."""

import os

import torch
from torch.distributed.fsdp import FullStateDictConfig, FullyShardedDataParallel, StateDictType

from mingpt.distributed import is_main_process


def save_weights(network, path):
    """Writes the whole model from the main process; every process has to call it."""
    FullyShardedDataParallel.set_state_dict_type(
        network,
        StateDictType.FULL_STATE_DICT,
        FullStateDictConfig(rank0_only=True),
    )
    weights = network.state_dict()
    if is_main_process():
        os.makedirs(os.path.dirname(path), exist_ok=True)
        torch.save(weights, path)


def load_weights(network, path):
    network.load_state_dict(torch.load(path, map_location="cpu"))
