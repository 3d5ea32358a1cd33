from torch.distributed.fsdp import FSDPModule


def unwrap_model(model):
    """The module that the user wrote."""
    return model


def is_sharded(model) -> bool:
    return isinstance(model, FSDPModule)


def count_units(model: FSDPModule) -> int:
    return len([module for module in model.modules() if isinstance(module, FSDPModule)])


def clean_names(model):
    return [name for name, _ in model.named_parameters()]
