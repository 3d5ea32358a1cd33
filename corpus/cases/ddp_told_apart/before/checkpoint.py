import torch
from torch.distributed.fsdp import FullOptimStateDictConfig, FullStateDictConfig, StateDictType
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from wrapping import is_model_ddp, is_model_fsdp


def save(path, model, optimizer, step, rank):
    if is_model_fsdp(model):
        config = FullStateDictConfig(offload_to_cpu=torch.cuda.is_available(), rank0_only=True)
        optim_config = FullOptimStateDictConfig(offload_to_cpu=torch.cuda.is_available(), rank0_only=True)
        with FSDP.state_dict_type(model, StateDictType.FULL_STATE_DICT, config, optim_config):
            weights = model.state_dict()
            moments = FSDP.optim_state_dict(model, optimizer)
    else:
        weights = model.state_dict()
        moments = optimizer.state_dict()
    if rank == 0:
        torch.save({"model": weights, "optimizer": moments, "step": step, "ddp": is_model_ddp(model)}, path)


def load(path, model, optimizer):
    state = torch.load(path, map_location="cpu")
    if is_model_fsdp(model):
        with FSDP.state_dict_type(model, StateDictType.FULL_STATE_DICT):
            model.load_state_dict(state["model"])
            optimizer.load_state_dict(FSDP.optim_state_dict_to_load(model, optimizer, state["optimizer"]))
    else:
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
    return state["step"]


def export(path, model, rank):
    """Weights alone, for programs without a wrapper."""
    weights = model.state_dict()
    weights = {name.removeprefix("module."): tensor for name, tensor in weights.items()}
    if rank == 0:
        torch.save(weights, path)
