"""Model files."""

import os

import torch
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict

from mingpt.distributed import is_main_process


def save_weights(network, path):
    """Writes the whole model from the main process; every process has to call it."""
    weights = get_model_state_dict(
        network, options=StateDictOptions(full_state_dict=True, cpu_offload=True)
    )
    if is_main_process():
        os.makedirs(os.path.dirname(path), exist_ok=True)
        torch.save(weights, path)


def load_weights(network, path):
    network.load_state_dict(torch.load(path, map_location="cpu"))
