"""FS309: `zero_grad()` of models."""

from __future__ import annotations

import ast
import re

import libcst as cst

from ..flow.values import Opaque, Unknown
from ..migration import Migration
from ..queries.answers import Answer
from ..queries.file import File
from ..rewrites.changes import replace
from ..rule import Example, Outcome, Rule
from ..sites import Site

_OPTIMIZER = re.compile(r"(?i)opt(im(izers?)?)?$|optim")


def of_the_shards(site: Site, migration: Migration) -> Outcome | None:
    """The gradients of the shards are reset: a forward without backward leaves gathered parameters, which have none."""
    assert site.call is not None and site.sharding is not None
    assert site.receiver is not None
    if site.sharding.answer is Answer.NO or _is_used_as_optimizer(site.file, site.receiver):
        return None
    if migration.is_before_wrap(site) or any(map(migration.sharding.is_optimizer, site.file.values(site.receiver))):
        return None
    name = migration.helper(site, "zero_gradients")

    def build(node: cst.CSTNode) -> cst.CSTNode:
        assert isinstance(node, cst.Call) and isinstance(node.func, cst.Attribute)
        return node.with_changes(func=cst.Name(name), args=[cst.Arg(node.func.value), *node.args])

    return Outcome("gradients of all shards are reset, also behind a forward", [replace(site.file, site.call, build)])


def _is_used_as_optimizer(file: File, receiver: ast.expr) -> bool:
    """Whether something that nothing is known of is named like an optimizer and makes steps, as those of other libraries."""
    text = ast.unparse(receiver)
    if file.values(receiver) and not all(isinstance(v, Unknown | Opaque) for v in file.values(receiver)):
        return False
    uses = {node.attr for node in file.nodes(ast.Attribute) if ast.unparse(node.value) == text}
    return _OPTIMIZER.search(text) is not None and not uses.isdisjoint({"step", "param_groups"})


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
                "from fsdp2_helpers import shard_like_ddp, zero_gradients\n\n\n"
                "def f(net, options):\n    model = shard_like_ddp(net, **options)\n    zero_gradients(model)\n"
            ),
        ),
    ),
    proof=("gan_ddp",),
)
