"""The meshes that a migration writes: over a node's devices, over one rank, of two process groups."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from ..analysis.values import Opaque
from .plan import Code, code, length

if TYPE_CHECKING:
    from .constructor import Constructor

DIMENSIONS = '("replicate", "shard")'
HYBRID = ("HYBRID_SHARD", "_HYBRID_SHARD_ZERO2")
"""Strategies that shard within a node and replicate across nodes where no mesh says otherwise."""
_WIDTH = 100


def device_type(constructor: Constructor) -> Code:
    """The type of device that the model trains on, as ``init_device_mesh`` wants it."""
    argument = constructor.arguments.get("device_id")
    if argument is None or argument.is_none:
        return ('"cuda"',)
    text = argument.view.text(argument.node)
    for value in argument.values:
        if isinstance(value, Opaque) and value.name == "torch.device":
            simple = isinstance(argument.node, (ast.Name, ast.Attribute))
            return code(argument.keep(), ".type") if simple else ('"cpu"' if "cpu" in text else '"cuda"',)
    if "xpu" in text:
        return ('"xpu"',)
    return ('"cuda"',)


def node_mesh(constructor: Constructor) -> Code:
    """Shards over the devices of a node, replicates over nodes: what FSDP1 makes of HYBRID_SHARD by itself."""
    init = constructor.plan.name("torch.distributed.device_mesh.init_device_mesh")
    size = constructor.plan.name("torch.distributed.get_world_size")
    torch = constructor.plan.name("torch.cuda.device_count")
    shape = f"({size}() // {torch}(), {torch}())"
    return code(
        f"{init}(\n    ", device_type(constructor), f",\n    {shape},\n    mesh_dim_names={DIMENSIONS},\n)"
    )


def replicated_mesh(constructor: Constructor) -> Code:
    """Replicates over all ranks and shards over one."""
    init = constructor.plan.name("torch.distributed.device_mesh.init_device_mesh")
    size = constructor.plan.name("torch.distributed.get_world_size")
    arguments = code(device_type(constructor), f", ({size}(), 1), mesh_dim_names={DIMENSIONS}")
    line = code(f"{init}(", arguments, ")")
    room = _WIDTH - len(constructor.view.indent(constructor.call)) - len("mesh = ")
    return line if length(constructor.view, line) <= room else code(f"{init}(\n    ", arguments, "\n)")


def mesh_of_pair(constructor: Constructor, pair: ast.Tuple) -> Code:
    """``(shard, replicate)``, as FSDP1 takes two process groups, as a mesh (replicate, shard)."""
    plan = constructor.plan
    from_group = plan.name("torch.distributed.device_mesh.DeviceMesh") + ".from_group"
    shard, replicate = (constructor.view.keep(element) for element in pair.elts)
    size = plan.name("torch.distributed.get_world_size")
    arange = plan.name("torch.arange")
    return code(
        f"{from_group}(\n    [", replicate, ", ", shard, "],\n    ", device_type(constructor),
        f",\n    mesh={arange}({size}()).view(-1, {size}(", shard, f")),\n    mesh_dim_names={DIMENSIONS},\n)",
    )  # fmt: skip
