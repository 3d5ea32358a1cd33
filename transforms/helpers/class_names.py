"""The names of classes that fully_shard makes."""

from typing import Any

from torch.distributed.fsdp import FSDPModule


def keep_class_name(unit: Any) -> None:
    """Let the class of `unit`, which fully_shard has just been applied to, be called as it was.

    fully_shard gives a module of class `Net` the class `FSDPNet`, which code that asks for a name does not expect: in
    checkpoints, configurations, and tests such as `type(layer).__name__ == "Block"`.
    """
    made, own = type(unit), type(unit).__mro__[2]  # behind FSDPModule
    made.__name__, made.__qualname__ = own.__name__, own.__qualname__


def class_of(model: Any) -> type:
    """`type(model)`; of a sharded model the class that it had before, which can be pickled and compared."""
    if isinstance(model, FSDPModule):
        return next(base for base in type(model).__bases__ if base is not FSDPModule)
    return type(model)
