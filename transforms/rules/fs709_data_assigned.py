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
    """The shard is written, since assigning to it changes nothing. DDP's parameter had other memory then: a shard too."""
    statement = site.file.statement(site.node)
    is_of_ddp = migration.wrapper_kinds_near(site.file.path) == {"ddp"}
    if isinstance(statement, ast.Assign) and len(statement.targets) == 1 and isinstance(statement.targets[0], ast.Tuple):
        return _all_written(site, statement, migration)
    if not isinstance(statement, ast.Assign) or statement.targets != [site.node]:
        return None
    if migration.acts_whole(site.sharding, site.file.path):
        return Outcome("a sharded parameter takes its part of what is assigned to it", level=Level.OK)
    name = migration.helper(site, "replace_data" if is_of_ddp else "assign_data")

    def build(node: cst.CSTNode) -> cst.CSTNode:
        assert isinstance(node, cst.Assign) and isinstance(node.targets[0].target, cst.Attribute)
        return cst.Expr(expression(name + "({p}, {value})", p=node.targets[0].target.value, value=node.value))

    change = replace(site.file, statement, build)
    return Outcome("a sharded parameter's own part is written: assigning .data would change nothing", [change])


def _all_written(site: Site, statement: ast.Assign, migration: Migration) -> Outcome | None:
    """``p.data, q.data = q.data, p.data``: what is assigned first changes what is assigned next."""
    targets = statement.targets[0].elts if isinstance(statement.targets[0], ast.Tuple) else []
    if site.node not in targets or not all(isinstance(target, ast.Attribute) and target.attr == "data" for target in targets):
        return None
    if migration.acts_whole(site.sharding, site.file.path):
        return Outcome("sharded parameters take their parts of what is assigned to them", level=Level.OK)
    if site.node is not targets[0]:
        return Outcome("it is written together with the first one", level=Level.OK)
    name = migration.helper(site, "replace_each_data")
    parameters = ", ".join(site.file.text(target.value) for target in targets if isinstance(target, ast.Attribute))
    text = f"{name}([{parameters}], {{value}})"

    def build(node: cst.CSTNode) -> cst.CSTNode:
        assert isinstance(node, cst.Assign)
        value = node.value
        if isinstance(value, cst.Tuple) and not value.lpar:
            value = value.with_changes(lpar=[cst.LeftParen()], rpar=[cst.RightParen()])
        return cst.Expr(expression(text, value=value))

    return Outcome("sharded parameters' own parts are written: assigning .data would change nothing",
                   [replace(site.file, statement, build)])  # fmt: skip


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
