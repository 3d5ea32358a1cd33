import torch
from wrapping import is_model_fsdp


def clip(model, limit):
    """FSDP clips by the norm, DDP by value."""
    if is_model_fsdp(model):
        return float(torch.nn.utils.clip_grad_norm_(model.parameters(), limit).full_tensor())
    torch.nn.utils.clip_grad_value_(model.parameters(), limit)
    return limit
