"""FSDP1's kinds of state dicts (full, sharded, local) as a setting of the modules that fully_shard was applied to."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import nn
from torch.distributed.fsdp import (
    FSDPModule,
    FullOptimStateDictConfig,
    FullStateDictConfig,
    LocalOptimStateDictConfig,
    LocalStateDictConfig,
    ShardedOptimStateDictConfig,
    ShardedStateDictConfig,
    StateDictSettings,
    StateDictType,
)

from .units import fsdp1_class

DEFAULT_CONFIGS = {
    StateDictType.FULL_STATE_DICT: (FullStateDictConfig, FullOptimStateDictConfig),
    StateDictType.LOCAL_STATE_DICT: (LocalStateDictConfig, LocalOptimStateDictConfig),
    StateDictType.SHARDED_STATE_DICT: (ShardedStateDictConfig, ShardedOptimStateDictConfig),
}


@contextmanager
def state_dict_type(
    module: nn.Module, state_dict_type: Any, state_dict_config: Any = None, optim_state_dict_config: Any = None
) -> Iterator[None]:
    """`FSDP.state_dict_type(...)`: the kind of state dicts inside the context. On a module without shards it does nothing."""
    before = set_state_dict_type(module, state_dict_type, state_dict_config, optim_state_dict_config)
    try:
        yield
    finally:
        if before.state_dict_type is not None:
            set_state_dict_type(
                module, before.state_dict_type, before.state_dict_config, before.optim_state_dict_config
            )


def set_state_dict_type(
    module: nn.Module, state_dict_type: Any, state_dict_config: Any = None, optim_state_dict_config: Any = None
) -> Any:
    """`FSDP.set_state_dict_type(...)` for all units in `module`; returns what was set before.

    Read by `state_of`, `model_state` and `optim_state_dict`. Sharded and local state dicts are the same here, a DTensor
    for each name; the flat parameters of FSDP1's local files are unexpected keys. FSDP1 modules are set as before.
    """
    old = fsdp1_class(module)  # needed for: old_wrappers
    if old is not None:  # needed for: old_wrappers
        return old.set_state_dict_type(module, state_dict_type, state_dict_config, optim_state_dict_config)
    before: Any = get_state_dict_type(module) or StateDictSettings(*[None] * 3)  # pyright: ignore[reportArgumentType]
    config, optim_config = DEFAULT_CONFIGS[state_dict_type]
    settings = StateDictSettings(
        state_dict_type, state_dict_config or config(), optim_state_dict_config or optim_config()
    )
    for unit in module.modules():
        if isinstance(unit, FSDPModule):
            setattr(unit, "_state_dict_settings", settings)  # noqa: B010
    return before


def get_state_dict_type(module: nn.Module) -> Any:
    """`FSDP.get_state_dict_type(module)`: a StateDictSettings, full by default; None for a module without shards."""
    old = fsdp1_class(module)  # needed for: old_wrappers
    if old is not None:  # needed for: old_wrappers
        return old.get_state_dict_type(module)
    default = StateDictSettings(StateDictType.FULL_STATE_DICT, FullStateDictConfig(), FullOptimStateDictConfig())
    units = (part for part in module.modules() if isinstance(part, FSDPModule))
    return next((getattr(unit, "_state_dict_settings", default) for unit in units), None)
