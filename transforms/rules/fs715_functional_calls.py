"""FS715: `torch.func.functional_call`, which runs a model on other tensors than its own parameters."""

from __future__ import annotations

import ast

from ..findings import Level
from ..migration import Migration
from ..queries.answers import Answer
from ..rewrites.helper_calls import call_instead, name_instead
from ..rule import Example, Outcome, Rule
from ..sites import Site


def with_given_tensors(site: Site, migration: Migration) -> Outcome | None:
    """The model runs on the tensors that it is given: fully_shard's own gather would put its parameters in their place."""
    call = site.call
    if migration.runs_before_wraps(site.file, site.node):
        return None
    if call is None:  # handed on: it gets a model that is not seen here, and is itself for a plain one
        assert isinstance(site.node, ast.expr)
        return Outcome(_MESSAGE, [name_instead(site.file, site.node, migration.helper(site, "call_with_weights"))], Level.REVIEW)
    model = call.args[0] if call.args else next((k.value for k in call.keywords if k.arg == "module"), None)
    if model is None:
        return None
    found = migration.sharding.of(site.file, model)
    if found.answer is Answer.NO or migration.is_fresh(site.file, call, model):
        return None
    name = migration.helper(site, "call_with_weights")
    return Outcome(_MESSAGE, [call_instead(site.file, call, name)])


_MESSAGE = "the model runs on the tensors that are given, whole: fully_shard would put its own in their place"

RULE = Rule(
    id="FS715",
    title="functional_call",
    symbols=("torch.func.functional_call", "torch.nn.utils.stateless.functional_call"),
    roles=("call", "value"),
    why="fully_shard gathers its own parameters before a forward: the tensors that the call gives would not be used.",
    fallback=with_given_tensors,
    examples=(
        Example(
            before=(
                "from torch.func import functional_call\n"
                "from torch.nn.parallel import DistributedDataParallel as DDP\n"
                "\n"
                "\n"
                "def f(net, options, weights, x):\n"
                "    model = DDP(net, **options)\n"
                "    return functional_call(model.module, weights, (x,))\n"
            ),
            after=(
                "from fsdp2_helpers import call_with_weights, shard_like_ddp\n"
                "\n"
                "\n"
                "def f(net, options, weights, x):\n"
                "    model = shard_like_ddp(net, **options)\n"
                "    return call_with_weights(model, weights, (x,))\n"
            ),
            level=Level.REVIEW,
        ),
    ),
)
