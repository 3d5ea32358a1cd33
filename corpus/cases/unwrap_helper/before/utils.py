from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.nn.parallel import DistributedDataParallel as DDP


def unwrap_model(model):
    """The module that the user wrote."""
    return model.module if isinstance(model, (DDP, FSDP)) else model


def is_sharded(model) -> bool:
    return isinstance(model, FSDP)


def count_units(model: FSDP) -> int:
    return len(FSDP.fsdp_modules(model))


def clean_names(model):
    return [name.replace("_fsdp_wrapped_module.", "") for name, _ in model.named_parameters()]
