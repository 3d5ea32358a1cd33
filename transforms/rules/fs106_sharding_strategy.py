"""sharding_strategy: whether units stay gathered after the forward, and over which mesh they are sharded."""

from __future__ import annotations

from ..analysis.symbols import FSDP1
from ..findings import Level
from ..rule import Example, Rule
from ..sharding.constructor import check_keyword

RULE = Rule(
    id="FS106",
    title="sharding_strategy becomes reshard_after_forward and a mesh",
    why=(
        "FULL_SHARD is fully_shard's default (also that the root stays gathered), SHARD_GRAD_OP is "
        "reshard_after_forward=False, HYBRID_SHARD a mesh of two dimensions, NO_SHARD replication: all four bitwise "
        "equal on gloo. A strategy that is chosen at run time becomes its name, looked up where it is used, so that a "
        "name without a counterpart raises instead of training in another way."
    ),
    symbols=(f"{FSDP1}(sharding_strategy=)",),
    check=check_keyword,
    examples=(
        Example(
            before="""\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp import ShardingStrategy


def shard(model):
    model = FSDP(model, sharding_strategy=ShardingStrategy.SHARD_GRAD_OP)
    return model
""",
            after="""\
from torch.distributed.fsdp import fully_shard


def shard(model):
    fully_shard(model, reshard_after_forward=False)
    return model
""",
        ),
        Example(
            before="""\
import torch
import torch.distributed as dist
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, ShardingStrategy


def shard(model):
    return FSDP(model, sharding_strategy=ShardingStrategy.HYBRID_SHARD, device_id=torch.cuda.current_device())
""",
            after="""\
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard


def shard(model):
    mesh = init_device_mesh(
        "cuda",
        (dist.get_world_size() // torch.cuda.device_count(), torch.cuda.device_count()),
        mesh_dim_names=("replicate", "shard"),
    )
    fully_shard(model, mesh=mesh)
    return model
""",
            level=Level.REVIEW,
        ),
        Example(
            before="""\
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, ShardingStrategy
from torch.distributed.fsdp.wrap import ModuleWrapPolicy


def shard(model, args):
    return FSDP(
        model,
        sharding_strategy=ShardingStrategy[args.strategy],
        auto_wrap_policy=ModuleWrapPolicy({torch.nn.TransformerEncoderLayer}),
    )
""",
            after="""\
import torch
from torch.distributed.fsdp import fully_shard


def shard(model, args):
    reshard_after_forward = {"FULL_SHARD": True, "SHARD_GRAD_OP": False}[args.strategy]
    for module in reversed(list(model.modules())):
        if module is not model and isinstance(module, torch.nn.TransformerEncoderLayer):
            fully_shard(module, reshard_after_forward=reshard_after_forward)
    fully_shard(model)
    return model
""",
            level=Level.REVIEW,
        ),
    ),
    proof=("trainer_class", "finetuning_package", "hybrid_shard", "grad_op_accumulation", "no_shard"),
)
