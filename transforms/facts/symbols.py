"""The names of the old world: every path under which FSDP1, DDP and old checkpoint symbols can be imported.

A symbol has one canonical, public name; its other paths (the module that defines it, say) lead to that name.
Read off the sources of torch 1.12 to 2.13.
"""

from __future__ import annotations

import re
from fnmatch import fnmatchcase
from functools import cache

FSDP1 = "torch.distributed.fsdp.FullyShardedDataParallel"
DDP = "torch.nn.parallel.DistributedDataParallel"
WRAPPERS = {FSDP1: "FSDP1", DDP: "DDP"}
FSDP_MODULE = "torch.distributed.fsdp.FSDPModule"
"""The class that every model of FSDP2 is of."""
WRAP = "torch.distributed.fsdp.wrap.wrap"
ENABLE_WRAP = "torch.distributed.fsdp.wrap.enable_wrap"
CONSTRUCTORS = {**WRAPPERS, WRAP: "FSDP1"}
"""What gives back a wrapped model when it is called; ``wrap`` does so where ``enable_wrap`` tells it to."""
AVERAGES = (
    "torch.optim.swa_utils.AveragedModel",
    "timm.utils.ModelEma*",
    "timm.utils.model_ema.ModelEma*",
)
"""Classes of libraries that keep an average of a model: patterns."""
KEEPERS_OF_AVERAGES = ("*.*EMA", "*.*EMA*Model", "*.*Ema", "*.*EmaModel", "*.ExponentialMovingAverage*", "*.EMA*")
"""Names that classes of any library have which keep an average of a model: patterns."""
LIBRARY_WRAPS = (
    "accelerate.Accelerator", "accelerate.accelerator.Accelerator", "transformers.Trainer", "transformers.trainer.Trainer",
    "lightning.Trainer", "lightning.Fabric", "lightning.pytorch.Trainer", "lightning.fabric.Fabric",
    "pytorch_lightning.Trainer", "composer.Trainer", "composer.trainer.Trainer", "ignite.distributed.auto_model",
    "ray.train.torch.prepare_model",
    "*[dD]istributed*[dD]ata*[pP]arallel*", "*FullyShardedDataParallel*", "*ddp_model*", "*.wrap_ddp*", "*.prepare_ddp*",
    "*.to_ddp", "*.to_fsdp",
)  # fmt: skip
"""What of other libraries puts models into DDP or FSDP1, or into wrappers of their own: patterns."""

_FSDP1_NAMES = (
    "FullyShardedDataParallel", "BackwardPrefetch", "CPUOffload", "FullOptimStateDictConfig", "FullStateDictConfig",
    "LocalOptimStateDictConfig", "LocalStateDictConfig", "MixedPrecision", "OptimStateDictConfig",
    "OptimStateKeyType", "ShardedOptimStateDictConfig", "ShardedStateDictConfig", "ShardingStrategy",
    "StateDictConfig", "StateDictSettings", "StateDictType", "FlatParameter",
)  # fmt: skip
_WRAP_NAMES = (
    "always_wrap_policy", "lambda_auto_wrap_policy", "transformer_auto_wrap_policy", "size_based_auto_wrap_policy",
    "enable_wrap", "wrap", "CustomPolicy", "ModuleWrapPolicy", "_or_policy", "_module_wrap_policy", "_Policy",
    "default_auto_wrap_policy", "ParamExecOrderWrapPolicy", "_wrap", "_recursive_wrap", "_ConfigAutoWrap",
)  # fmt: skip
_CHECKPOINT_WRAPPER = "torch.distributed.algorithms._checkpoint.checkpoint_wrapper"
_OLD_DCP = {
    "save_state_dict": "torch.distributed.checkpoint.save_state_dict",
    "load_state_dict": "torch.distributed.checkpoint.load_state_dict",
    "load_sharded_optimizer_state_dict": "torch.distributed.checkpoint.optimizer.load_sharded_optimizer_state_dict",
}

PREFIXES: tuple[str, ...] = (
    "torch.distributed.fsdp",
    "torch.distributed._composable",
    "torch.nn.parallel",
    "torch.distributed.algorithms",
    "torch.distributed.optim",
    "torch.distributed.checkpoint",
    "torch.distributed.nn.parallel",
)

_FSDP2_PUBLIC = (
    "fully_shard", "FSDPModule", "MixedPrecisionPolicy", "OffloadPolicy", "CPUOffloadPolicy", "UnshardHandle",
    "register_fsdp_forward_method", "share_comm_ctx", "DataParallelMeshDims",
)  # fmt: skip

_STARS = {
    "torch.distributed.fsdp": (*_FSDP1_NAMES[:-1], *_FSDP2_PUBLIC[:-2]),
    "torch.distributed.fsdp.fully_sharded_data_parallel": _FSDP1_NAMES[:-1],
    "torch.distributed.fsdp.api": _FSDP1_NAMES[1:-1],
    "torch.distributed.fsdp.wrap": tuple(name for name in _WRAP_NAMES if not name.startswith("_")),
    "torch.nn.parallel": ("DistributedDataParallel",),
    "torch.nn.parallel.distributed": ("DistributedDataParallel",),
}

ALIASES: dict[str, str] = {}
for _name in _FSDP1_NAMES:
    for _module in ("fully_sharded_data_parallel", "api", "flat_param", "_flat_param"):
        ALIASES[f"torch.distributed.fsdp.{_module}.{_name}"] = f"torch.distributed.fsdp.{_name}"
for _name in _WRAP_NAMES:
    if _name == "wrap":
        continue  # torch.distributed.fsdp.wrap is the module
    ALIASES[f"torch.distributed.fsdp.{_name}"] = f"torch.distributed.fsdp.wrap.{_name}"
for _name in ("DistributedDataParallel",):
    for _module in ("torch.nn.parallel.distributed", "torch.nn"):
        ALIASES[f"{_module}.{_name}"] = DDP
for _name, _canonical in _OLD_DCP.items():
    for _module in ("", "state_dict_saver.", "state_dict_loader.", "optimizer.", "_state_dict_utils."):
        ALIASES.setdefault(f"torch.distributed.checkpoint.{_module}{_name}", _canonical)
# The module of that name replaces itself by torch.distributed.checkpoint when it is imported.
ALIASES["torch.distributed._shard.checkpoint"] = "torch.distributed.checkpoint"
for _name in ("FileSystemReader", "FileSystemWriter"):
    ALIASES[f"torch.distributed.checkpoint.filesystem.{_name}"] = f"torch.distributed.checkpoint.{_name}"
for _name in ("save", "load", "async_save"):
    for _module in ("state_dict_saver", "state_dict_loader"):
        ALIASES[f"torch.distributed.checkpoint.{_module}.{_name}"] = f"torch.distributed.checkpoint.{_name}"
for _name in ("ZeroRedundancyOptimizer",):
    ALIASES[f"torch.distributed.optim.zero_redundancy_optimizer.{_name}"] = f"torch.distributed.optim.{_name}"
ALIASES["torch.distributed.optim.post_localSGD_optimizer.PostLocalSGDOptimizer"] = (
    "torch.distributed.optim.PostLocalSGDOptimizer"
)
for _name in ("Join", "Joinable", "JoinHook"):
    ALIASES[f"torch.distributed.algorithms.{_name}"] = f"torch.distributed.algorithms.join.{_name}"
for _name in _FSDP2_PUBLIC:
    for _module in ("torch.distributed._composable.fsdp", "torch.distributed.fsdp._fully_shard"):
        ALIASES[f"{_module}.{_name}"] = f"torch.distributed.fsdp.{_name}"

ALIASES = {alias: name for alias, name in ALIASES.items() if alias != name}

_OLD_EXACT = (
    {f"torch.distributed.fsdp.{name}" for name in _FSDP1_NAMES}
    | {f"torch.distributed.fsdp.wrap.{name}" for name in _WRAP_NAMES}
    | set(_OLD_DCP.values())
    | {DDP}
)
_OLD_PREFIXES = (
    "torch.distributed.fsdp.sharded_grad_scaler",
    "torch.distributed.fsdp._",
    "torch.distributed.algorithms.ddp_comm_hooks",
    "torch.distributed.algorithms._comm_hooks",
    "torch.distributed.algorithms.join",
    "torch.distributed.algorithms.model_averaging",
    _CHECKPOINT_WRAPPER,
    "torch.distributed.optim.ZeroRedundancyOptimizer",
    "torch.distributed.optim.PostLocalSGDOptimizer",
    "torch.distributed._composable.replicate",
    "torch.distributed._composable.fully_shard",
    "torch.distributed._shard.sharded_tensor",
)
_NEW_EXACT = {f"torch.distributed.fsdp.{name}" for name in _FSDP2_PUBLIC} | {"torch.distributed.fsdp._fully_shard"}

STRONG_TOKENS: tuple[bytes, ...] = (
    b"FSDP", b"FullyShardedDataParallel", b"DistributedDataParallel", b"DDP", b"torch.distributed.fsdp",
    b"ShardedGradScaler", b"checkpoint_wrapper", b"ZeroRedundancyOptimizer", b"ddp_comm_hooks",
    b"torch.distributed.checkpoint", b"torch.distributed._shard", b"distributed.algorithms", b"fully_shard",
    b"distributed.fsdp", b"dist_cp", b"to-fsdp2 FS", b"to-fsdp2:", b"fsdp2_helpers",
)  # fmt: skip
"""A repository in which no file holds one of these has nothing to migrate."""

_DDP = re.compile(rb"(?<![A-Z])DDP")


def holds_token(data: bytes) -> bool:
    """Whether a file holds a strong token; words in capitals that happen to (``ADDPROPERTY``) do not count."""
    found = [token for token in STRONG_TOKENS if token in data]
    return bool(found) and (found != [b"DDP"] or _DDP.search(data) is not None)


@cache
def canonical(name: str) -> str:
    """The public name of a torch symbol; members (``….FullyShardedDataParallel.no_sync``) follow their owner."""
    if not name.startswith("torch."):
        return name
    owner, members = name, ""
    while owner:
        if owner in ALIASES:
            renamed = ALIASES[owner] + members
            return renamed if renamed in ALIASES.values() else canonical(renamed)
        owner, dot, last = owner.rpartition(".")
        members = f"{dot}{last}{members}"
    return name


def star_names(module: str) -> tuple[str, ...]:
    """The names of ours that ``from module import *`` brings."""
    return _STARS.get(module, ())


@cache
def is_old(name: str) -> bool:
    """Whether a canonical name belongs to the world that is left behind, so that its uses are sites."""
    owner = name
    if name in _NEW_EXACT or any(name.startswith(new + ".") for new in _NEW_EXACT):
        return False
    while owner:
        if owner in _OLD_EXACT:
            return True
        owner = owner.rpartition(".")[0]
    return name.startswith(_OLD_PREFIXES)


def wraps_in_library(name: str) -> bool:
    """Whether a canonical name is of something outside of torch that wraps models itself."""
    return not name.startswith("torch.") and any(fnmatchcase(name, pattern) for pattern in LIBRARY_WRAPS)


def is_old_module(module: str) -> bool:
    """Whether importing this module by name is itself a site."""
    return (module.startswith(_OLD_PREFIXES) and is_old(module)) or module in (
        "torch.distributed.fsdp",
        "torch.distributed.fsdp.wrap",
        "torch.distributed.fsdp.api",
        "torch.distributed.fsdp.fully_sharded_data_parallel",
        "torch.nn.parallel.distributed",
    )
