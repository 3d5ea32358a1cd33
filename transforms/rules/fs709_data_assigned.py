"""FS709: `parameter.data = value`."""

from __future__ import annotations

import ast

import libcst as cst

from ..findings import Level
from ..migration import Migration
from ..rewrites.changes import replace
from ..rewrites.templates import expression
from ..rule import Example, Outcome, Rule
from ..sites import DATA, Site


def written(site: Site, migration: Migration) -> Outcome | None:
    """The shard is written, since assigning to it changes nothing."""
    statement = site.file.statement(site.node)
    if not isinstance(statement, ast.Assign) or statement.targets != [site.node]:
        return None
    if migration.acts_whole(site.sharding, site.file.path):
        return Outcome("a sharded parameter takes its part of what is assigned to it", level=Level.OK)
    name = migration.helper(site, "assign_data")

    def build(node: cst.CSTNode) -> cst.CSTNode:
        assert isinstance(node, cst.Assign) and isinstance(node.targets[0].target, cst.Attribute)
        return cst.Expr(expression(name + "({p}, {value})", p=node.targets[0].target.value, value=node.value))

    change = replace(site.file, statement, build)
    return Outcome("a sharded parameter's own part is written: assigning .data would change nothing", [change])


RULE = Rule(
    id="FS709",
    title=".data assigned",
    symbols=(DATA,),
    roles=("store",),
    why="`p.data = x` on a sharded parameter is silently without effect.",
    fallback=written,
    examples=(
        Example(
            before=(
                "from torch.distributed.fsdp import FullyShardedDataParallel as FSDP\n"
                "\n"
                "\n"
                "def f(net, options):\n"
                "    model = FSDP(net, **options)\n"
                "    for p in model.parameters():\n"
                "        p.data = p.data * 0.9\n"
            ),
            after=(
                "from fsdp2_helpers import assign_data, shard_like_fsdp1\n"
                "\n"
                "\n"
                "def f(net, options):\n"
                "    model = shard_like_fsdp1(net, **options)\n"
                "    for p in model.parameters():\n"
                "        assign_data(p, p.data * 0.9)\n"
            ),
            level=Level.REVIEW,
        ),
    ),
)
