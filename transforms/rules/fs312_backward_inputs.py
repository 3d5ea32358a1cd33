"""FS312: backwards that give gradients of named parameters alone."""

from __future__ import annotations

import ast

from ..findings import Level
from ..migration import Migration
from ..rewrites.helper_calls import around
from ..rule import Example, Outcome, Rule
from ..sites import BACKWARD_INPUTS, Site


def of_what_is_in_the_graph(site: Site, migration: Migration) -> Outcome | None:
    """What forwards gathered of the sharded parameters is asked for beside them."""
    assert isinstance(site.node, ast.expr)
    if not migration.options.wraps:
        return None
    name = migration.helper(site, "in_graph")
    return Outcome(_MESSAGE, [around(site.file, site.node, f"{name}({{it}})")], Level.REVIEW)


_MESSAGE = "sharded parameters are in no graph: a backward that asks for them alone left them without gradients, and said nothing"

RULE = Rule(
    id="FS312",
    title="backwards that are told their inputs",
    symbols=(BACKWARD_INPUTS,),
    roles=("read",),
    why="A forward computes with what it gathers of a sharded parameter: a backward for the parameter itself finds nothing.",
    fallback=of_what_is_in_the_graph,
    examples=(
        Example(
            before=(
                "from torch.nn.parallel import DistributedDataParallel as DDP\n"
                "\n"
                "\n"
                "def f(net, options, critic, x):\n"
                "    model = DDP(net, **options)\n"
                "    critic(model(x)).mean().backward(inputs=list(model.parameters()))\n"
            ),
            after=(
                "from fsdp2_helpers import in_graph, shard_like_ddp\n"
                "\n"
                "\n"
                "def f(net, options, critic, x):\n"
                "    model = shard_like_ddp(net, **options)\n"
                "    critic(model(x)).mean().backward(inputs=in_graph(list(model.parameters())))\n"
            ),
            level=Level.REVIEW,
        ),
    ),
)
