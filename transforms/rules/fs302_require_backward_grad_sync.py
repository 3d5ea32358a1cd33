"""FS302: `require_backward_grad_sync`."""

from __future__ import annotations

import ast

import libcst as cst

from ..facts.symbols import DDP
from ..findings import Level
from ..migration import Migration
from ..queries.answers import Answer
from ..queries.given_up_windows import BY_HAND
from ..rewrites.changes import replace
from ..rewrites.helper_calls import attribute_as_call
from ..rewrites.templates import expression
from ..rule import Example, Outcome, Rule
from ..sites import Site


def set_directly(site: Site, migration: Migration) -> Outcome | None:
    """FSDP2's own switch, where the model is surely sharded."""
    statement = site.file.statement(site.node)
    if site.role != "store" or not isinstance(statement, ast.Assign) or statement.targets != [site.node]:
        return None
    if not migration.is_sharded_here(site) or migration.may_give_up_windows(site.file.path):
        return None

    def build(node: cst.CSTNode) -> cst.CSTNode:
        assert isinstance(node, cst.Assign) and isinstance(node.targets[0].target, cst.Attribute)
        model = node.targets[0].target.value
        return cst.Expr(expression("{model}.set_requires_gradient_sync({value})", model=model, value=_bare(node.value)))

    return Outcome(_MESSAGE, [replace(site.file, statement, build)])


def switched(site: Site, migration: Migration) -> Outcome | None:
    """Assigned, the switch of FSDP2 is set; read, it is asked for."""
    assert site.sharding is not None and isinstance(site.node, ast.Attribute)
    if site.sharding.answer is Answer.NO:
        return None
    if site.role == "read":
        name = migration.helper(site, "gradient_sync")
        return Outcome("the switch of FSDP2 is read", [attribute_as_call(site.file, site.node, name + "({receiver})")])
    statement = site.file.statement(site.node)
    if not isinstance(statement, ast.Assign) or statement.targets != [site.node]:
        return Outcome("assigned beside other names: write set_requires_gradient_sync by hand")
    name = migration.helper(site, "set_gradient_sync")

    def build(node: cst.CSTNode) -> cst.CSTNode:
        assert isinstance(node, cst.Assign) and isinstance(node.targets[0].target, cst.Attribute)
        return cst.Expr(expression(name + "({model}, {value})", model=node.targets[0].target.value, value=_bare(node.value)))

    if migration.gives_up_by_hand(site.file.path):
        return Outcome(BY_HAND, [replace(site.file, statement, build)], Level.REVIEW, advice="Use optimizer.zero_grad().")
    return Outcome(_MESSAGE, [replace(site.file, statement, build)])


def _bare(value: cst.BaseExpression) -> cst.BaseExpression:
    """An expression without the parentheses that the ones of a call make needless."""
    if not isinstance(value, (cst.Comparison, cst.BooleanOperation, cst.UnaryOperation, cst.IfExp)) or len(value.lpar) != 1:
        return value
    plain = all(isinstance(p, cst.SimpleWhitespace) for p in (value.lpar[0].whitespace_after, value.rpar[0].whitespace_before))
    return value.with_changes(lpar=[], rpar=[]) if plain else value


_MESSAGE = "the switch of FSDP2 says whether the coming backward reduces gradients"


RULE = Rule(
    id="FS302",
    title="require_backward_grad_sync",
    symbols=(f"{DDP}.require_backward_grad_sync",),
    roles=("read", "store"),
    why="The attribute means nothing on a model of FSDP2: assigned, it is silently ignored and every micro-batch reduces.",
    idiom=set_directly,
    fallback=switched,
    examples=(
        Example(
            before=(
                "from torch.nn.parallel import DistributedDataParallel as DDP\n"
                "\n"
                "\n"
                "def f(net, options):\n"
                "    model = DDP(net, **options)\n"
                "    model.require_backward_grad_sync = (options['step'] % 4 == 0)\n"
            ),
            after=(
                "from fsdp2_helpers import shard_like_ddp\n"
                "\n"
                "\n"
                "def f(net, options):\n"
                "    model = shard_like_ddp(net, **options)\n"
                "    model.set_requires_gradient_sync(options['step'] % 4 == 0)\n"
            ),
            level=Level.SAFE,
        ),
        Example(
            before=(
                "from torch.nn.parallel import DistributedDataParallel as DDP\n"
                "\n"
                "\n"
                "def f(net, options):\n"
                "    step(DDP(net, **options), True)\n"
                "\n"
                "\n"
                "def step(model, last):\n"
                "    model.require_backward_grad_sync = last\n"
            ),
            after=(
                "from fsdp2_helpers import set_gradient_sync, shard_like_ddp\n"
                "\n"
                "\n"
                "def f(net, options):\n"
                "    step(shard_like_ddp(net, **options), True)\n"
                "\n"
                "\n"
                "def step(model, last):\n"
                "    set_gradient_sync(model, last)\n"
            ),
            level=Level.SAFE,
            blind=True,
        ),
    ),
    proof=("nanogpt_ddp",),
)
