"""FS309: `zero_grad()` of models."""

from __future__ import annotations

import ast

import libcst as cst

from ..flow.values import Optimizer
from ..migration import Migration
from ..queries.answers import Answer
from ..rewrites.changes import replace
from ..rewrites.templates import expression
from ..rule import Example, Outcome, Rule
from ..sites import Site


def of_the_shards(site: Site, migration: Migration) -> Outcome | None:
    """The shards are registered first: a forward without backward leaves gathered parameters, which have no gradients."""
    assert site.call is not None and site.sharding is not None
    assert site.receiver is not None
    if site.sharding.answer is Answer.NO:
        return None
    if migration.is_before_wrap(site) or any(isinstance(v, Optimizer) for v in site.file.values(site.receiver)):
        return None
    name = migration.helper(site, "resharded")
    if isinstance(site.receiver, ast.Call) and ast.unparse(site.receiver.func) == name:
        return None  # migrated before

    def build(node: cst.CSTNode) -> cst.CSTNode:
        assert isinstance(node, cst.Call) and isinstance(node.func, cst.Attribute)
        model = expression(f"{name}({{model}})", model=node.func.value)
        return node.with_changes(func=node.func.with_changes(value=model))

    return Outcome("gradients of all shards are reset, also behind an evaluation", [replace(site.file, site.call, build)])


RULE = Rule(
    id="FS309",
    title="zero_grad() of a model",
    symbols=("torch.nn.Module.zero_grad",),
    roles=("call",),
    why="After a forward without backward, gathered parameters stay registered: zero_grad() silently misses the shards.",
    fallback=of_the_shards,
    examples=(
        Example(
            before=(
                "from torch.nn.parallel import DistributedDataParallel as DDP\n\n\n"
                "def f(net, options):\n    model = DDP(net, **options)\n    model.zero_grad()\n"
            ),
            after=(
                "from fsdp2_helpers import resharded, shard_like_ddp\n\n\n"
                "def f(net, options):\n    model = shard_like_ddp(net, **options)\n    resharded(model).zero_grad()\n"
            ),
        ),
    ),
    proof=("gan_ddp",),
)
