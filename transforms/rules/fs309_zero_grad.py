"""FS309: `zero_grad()` of models."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from itertools import takewhile

import libcst as cst

from ..findings import Level
from ..flow.values import Instance, Wrapped
from ..migration import Migration
from ..queries.answers import Answer
from ..queries.file import File
from ..queries.given_up_windows import is_right_behind_step
from ..rewrites.changes import replace
from ..rule import Example, Outcome, Rule
from ..sites import Site

_OPTIMIZER = re.compile(r"(?i)opt(im(izers?)?)?$|optim")
_CALLED_SO = re.compile(r"(?i)(\b|_)optimizers?(\b|_)")


def behind_a_step(site: Site, migration: Migration) -> Outcome | None:
    """Right behind an optimizer's step, a backward has left the shards registered, so that the model's own method finds them.

    In front of a loop with such a step nothing is left to reset. Of several models, another one may have made the step.
    """
    assert site.call is not None and site.sharding is not None
    if not site.sharding.wrappers or not (is_right_behind_step(site.file, site.call) or _is_in_front_of_loop(site)):
        return None
    if migration.wraps_near(site.file.path) > 1:
        return None
    return Outcome("behind a step the shards are registered, and the model resets their gradients", level=Level.OK)


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


def _is_in_front_of_loop(site: Site) -> bool:
    """Whether a model is reset once in a function which later on resets it behind each step."""
    function, text = site.file.function(site.node), ast.unparse(site.node)
    if any(isinstance(around, (ast.For, ast.While)) for around in _inside(site.file, site.node)):
        return False
    alike = (n for n in ast.walk(function or site.file.tree) if isinstance(n, ast.Call) and ast.unparse(n) == text)
    return any(n is not site.node and is_right_behind_step(site.file, n) for n in alike)


def _inside(file: File, node: ast.AST) -> Iterator[ast.AST]:
    return takewhile(lambda around: around is not file.function(node), file.ancestors(node))


def _is_used_as_optimizer(file: File, receiver: ast.expr) -> bool:
    """Whether something that is no model one knows of is called an optimizer, or named like one and makes steps."""
    text = ast.unparse(receiver)
    if any(isinstance(v, Wrapped | Instance) for v in file.values(receiver)):
        return False
    if _CALLED_SO.search(text) is not None:
        return True
    uses = {node.attr for node in file.nodes(ast.Attribute) if ast.unparse(node.value) == text}
    return _OPTIMIZER.search(text) is not None and not uses.isdisjoint({"step", "param_groups"})


RULE = Rule(
    id="FS309",
    title="zero_grad() of a model",
    symbols=("torch.nn.Module.zero_grad",),
    roles=("call",),
    why="After a forward without backward, gathered parameters stay registered: zero_grad() silently misses the shards.",
    idiom=behind_a_step,
    fallback=of_the_shards,
    examples=(
        Example(
            before=(
                "from torch.nn.parallel import DistributedDataParallel as DDP\n\n\n"
                "def f(net, options, optimizer, x):\n    model = DDP(net, **options)\n    model(x).sum().backward()\n"
                "    optimizer.step()\n    model.zero_grad()\n"
            ),
            after=(
                "from fsdp2_helpers import shard_like_ddp\n\n\n"
                "def f(net, options, optimizer, x):\n    model = shard_like_ddp(net, **options)\n    model(x).sum().backward()\n"
                "    optimizer.step()\n    model.zero_grad()\n"
            ),
            level=Level.OK,
        ),
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
