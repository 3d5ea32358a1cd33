import torch
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_optimizer_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
)
from wrapping import is_model_ddp, is_model_fsdp


def save(path, model, optimizer, step, rank):
    if is_model_fsdp(model):
        config = StateDictOptions(full_state_dict=True, cpu_offload=True)
        optim_config = StateDictOptions(full_state_dict=True, cpu_offload=True)
        weights = get_model_state_dict(model, options=config)
        moments = get_optimizer_state_dict(model, optimizer, options=optim_config)
    else:
        weights = model.state_dict()
        moments = optimizer.state_dict()
    if rank == 0:
        torch.save({"model": weights, "optimizer": moments, "step": step, "ddp": is_model_ddp(model)}, path)


def load(path, model, optimizer):
    state = torch.load(path, map_location="cpu")
    if is_model_fsdp(model):
        set_model_state_dict(model, state["model"], options=StateDictOptions(full_state_dict=True))
        set_optimizer_state_dict(
            model, optimizer, state["optimizer"], options=StateDictOptions(full_state_dict=True)
        )
    else:
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
    return state["step"]


def export(path, model, rank):
    """Weights alone, for programs without a wrapper."""
    if isinstance(model, torch.nn.parallel.DistributedDataParallel):
        weights = model.state_dict()
    else:
        weights = get_model_state_dict(model, options=StateDictOptions(full_state_dict=True))
    weights = {name.removeprefix("module."): tensor for name, tensor in weights.items()}
    if rank == 0:
        torch.save(weights, path)
