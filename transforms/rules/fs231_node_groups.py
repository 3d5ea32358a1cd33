"""_init_intra_and_inter_node_groups: the process groups that FSDP1 makes for HYBRID_SHARD."""

from __future__ import annotations

from ..findings import Level
from ..migration import Migration
from ..rule import Example, Outcome, Rule
from ..sharding.constructor import is_left_out
from ..sharding.process_groups import NODE_GROUPS
from ..sites import Site


def check(site: Site, migration: Migration) -> Outcome:
    """A mesh takes the place of the groups where nothing but a wrap takes them together."""
    if is_left_out(site, migration):
        return Outcome(
            Level.REVIEW,
            "the groups of a node's ranks and across nodes become one mesh of two dimensions; where nodes have different "
            "numbers of devices, its shape has to be given by hand",
        )
    return Outcome(
        Level.MANUAL,
        "this function of FSDP1 is private, and what its groups are for cannot be seen from here",
        'Make a mesh, init_device_mesh("cuda", (nodes, devices), mesh_dim_names=("replicate", "shard")): its '
        'get_group("shard") and get_group("replicate") are the two groups.',
    )


_BEFORE = """\
import torch
import torch.distributed as dist
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, ShardingStrategy
from torch.distributed.fsdp._init_utils import _init_intra_and_inter_node_groups


def shard(model, hybrid):
    if hybrid:
        within, across = _init_intra_and_inter_node_groups(dist.group.WORLD)
        process_group = (within, across)
        print(dist.get_rank(within))
    else:
        process_group = None
    return FSDP(
        model,
        process_group=process_group,
        sharding_strategy=ShardingStrategy.HYBRID_SHARD if hybrid else ShardingStrategy.FULL_SHARD,
        device_id=torch.cuda.current_device(),
    )
"""
_AFTER = """\
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard


def shard(model, hybrid):
    if hybrid:
        node_mesh = init_device_mesh(
            "cuda",
            (dist.get_world_size() // torch.cuda.device_count(), torch.cuda.device_count()),
            mesh_dim_names=("replicate", "shard"),
        )
        within = node_mesh.get_group("shard")
        mesh = node_mesh
        print(dist.get_rank(within))
    else:
        mesh = None
    fully_shard(model, mesh=mesh)
    return model
"""
_ALONE = """\
import torch.distributed as dist
from torch.distributed.fsdp._init_utils import _init_intra_and_inter_node_groups

groups = _init_intra_and_inter_node_groups(dist.group.WORLD)
"""

RULE = Rule(
    id="FS231",
    title="The groups within and across nodes become a mesh",
    why=(
        "FSDP1 takes a pair of process groups, (shard, replicate); FSDP2 takes a mesh of two dimensions, (replicate, "
        "shard), which makes the same groups by itself. Swapped, nothing raises and all numbers are equal, but parameters "
        "are gathered across nodes."
    ),
    symbols=(NODE_GROUPS,),
    roles=("call", "reference"),
    check=check,
    examples=(Example(_BEFORE, _AFTER, Level.REVIEW), Example(_ALONE, _ALONE, Level.MANUAL)),
    sources=("torch/distributed/fsdp/_init_utils.py: _init_intra_and_inter_node_groups",),
)
