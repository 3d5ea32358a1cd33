"""process_group and device_mesh become the mesh of every call."""

from __future__ import annotations

from ..analysis.symbols import FSDP1
from ..findings import Level
from ..rule import Example, Rule
from ..sharding.constructor import check_keyword

RULE = Rule(
    id="FS230",
    title="Process groups and meshes become mesh",
    why=(
        "fully_shard takes a DeviceMesh in every call. FSDP1 takes a pair of groups as (shard, replicate), a mesh has "
        "its dimensions as (replicate, shard): the wrong way round nothing differs but the traffic between "
        "nodes, so no "
        "comparison of numbers finds it. A mesh of two dimensions must have names."
    ),
    symbols=(f"{FSDP1}(process_group=)", f"{FSDP1}(device_mesh=)"),
    check=check_keyword,
    examples=(
        Example(
            before="""\
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, ShardingStrategy


def shard(model):
    mesh = init_device_mesh("cuda", (2, 4))
    model = FSDP(model, device_mesh=mesh, sharding_strategy=ShardingStrategy.HYBRID_SHARD)
    return model
""",
            after="""\
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard


def shard(model):
    mesh = init_device_mesh("cuda", (2, 4), mesh_dim_names=("replicate", "shard"))
    fully_shard(model, mesh=mesh)
    return model
""",
            level=Level.REVIEW,
        ),
        Example(
            before="""\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


def shard(model, group):
    model = FSDP(model, process_group=group.inner)
    return model
""",
            after="""\
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard


def shard(model, group):
    fully_shard(model, mesh=DeviceMesh.from_group(group.inner, "cuda"))
    return model
""",
            level=Level.REVIEW,
        ),
    ),
    proof=("hybrid_shard",),
)
