"""FSDP1's handles of flat parameters."""

from typing import Any

from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor

from .parameters import resharded


def unit_handles(module: Any) -> list[Any]:
    """`module._handles` of FSDP1; of a sharded module the parameters that it manages itself, one tensor each."""
    return _own_parameters(module) if isinstance(module, FSDPModule) else module._handles


def unit_parameters(module: Any) -> list[Any]:
    """`module.params` of a unit of FSDP1; of a sharded module the parameters that it manages itself."""
    return _own_parameters(module) if isinstance(module, FSDPModule) else module.params


def _own_parameters(module: Any) -> list[Any]:
    own: Any = module
    inner = [unit for unit in own.modules() if isinstance(unit, FSDPModule) and unit is not module]
    elsewhere = {p for unit in inner for p in resharded(unit).parameters()}
    return [p for p in resharded(own).parameters() if isinstance(p, DTensor) and p not in elsewhere]


def flat_parameter(handle: Any) -> Any:
    """`handle.flat_param`; of what stands for a handle after sharding, a parameter, itself."""
    return getattr(handle, "flat_param", handle)
