"""The weights in one file."""

import torch
from torch.distributed.fsdp import FullStateDictConfig, StateDictType
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

from .parallel import is_main


def save(model, path):
    # every rank takes part, rank 0 writes
    config = FullStateDictConfig(offload_to_cpu=torch.cuda.is_available(), rank0_only=True)
    with FSDP.state_dict_type(model, StateDictType.FULL_STATE_DICT, config):
        weights = model.state_dict()
    if is_main():
        torch.save(weights, path)
        print(f"saved {path}")
