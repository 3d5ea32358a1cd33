"""The checkpoint functions that FSDP1 programs used with sharded state dicts."""

from typing import Any

import torch
from torch.distributed.checkpoint._nested_dict import unflatten_state_dict
from torch.distributed.checkpoint.metadata import TensorStorageMetadata
from torch.distributed.checkpoint.optimizer import load_sharded_optimizer_state_dict as load_sharded_tensors
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.tensor import DTensor


def load_sharded_optimizer_state(
    model_state_dict: dict[str, Any], optimizer_key: str, storage_reader: Any, planner: Any = None
) -> dict[str, Any]:
    """`torch.distributed.checkpoint.load_sharded_optimizer_state_dict(...)`, giving DTensors where the model's are.

    torch's gives ShardedTensors, which only FSDP1 takes. The other functions of that module work with DTensors as they
    are, and read what FSDP1 saved: save_state_dict, load_state_dict, FileSystemWriter and Reader, the default planners.
    """
    if not any(isinstance(value, DTensor) for value in model_state_dict.values()):
        return load_sharded_tensors(model_state_dict, optimizer_key, storage_reader, planner)
    metadata = storage_reader.read_metadata()
    state: dict[str, Any] = {}
    for key, saved in metadata.state_dict_metadata.items():
        path = metadata.planner_data[key]
        if path[0] != optimizer_key:
            continue
        if not isinstance(saved, TensorStorageMetadata):
            state[key] = "<bytes_io>"  # replaced by what is read
            continue
        like = model_state_dict.get(path[2]) if len(path) > 2 else None
        if isinstance(like, DTensor) and like.shape == saved.size:
            state[key] = torch.empty_like(like, dtype=saved.properties.dtype)
        else:
            state[key] = torch.empty(saved.size, dtype=saved.properties.dtype)
    load(state, storage_reader=storage_reader, planner=planner)
    return unflatten_state_dict(state, metadata.planner_data)
