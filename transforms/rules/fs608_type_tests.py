"""FS608: `type(model) is DDP` and its kin."""

from __future__ import annotations

import ast

import libcst as cst

from ..facts.symbols import DDP, FSDP1, FSDP_MODULE
from ..findings import Level
from ..migration import Migration
from ..queries.unwrapping import only_asked_to_unwrap
from ..rewrites.changes import replace
from ..rewrites.templates import expression
from ..rule import Example, Outcome, Rule
from ..sites import Site

_POSITIVE = (ast.Is, ast.Eq, ast.In)


def asks_both(site: Site, migration: Migration) -> Outcome | None:
    """Models of FSDP2 are asked for beside what the test asked for."""
    compare = next((a for a in site.file.ancestors(site.node) if isinstance(a, ast.Compare)), None)
    if compare is None or not migration.options.wraps:
        return None
    first = next(n for n in ast.walk(compare) if isinstance(n, (ast.Name, ast.Attribute)) and _is_wrapper(site, n))
    if first is not site.node:
        return None  # its tuple names both wrappers: one answer for both
    beside = site.file.parents[compare]
    if isinstance(beside, ast.BoolOp) and any(_asks_for_module(site, part) for part in beside.values):
        return None
    if only_asked_to_unwrap(site.file, compare):
        return Outcome("it answers no for models of FSDP2, and the branch without `.module` is right", level=Level.OK)
    name = migration.torch(site, FSDP_MODULE)
    positive = isinstance(compare.ops[0], _POSITIVE)
    template = "(isinstance({x}, {name}) or {it})" if positive else "(not isinstance({x}, {name}) and {it})"

    def build(node: cst.CSTNode) -> cst.CSTNode:
        assert isinstance(node, cst.Comparison) and isinstance(node.left, cst.Call)
        return expression(template, x=node.left.args[0].value, name=name, it=node)

    return Outcome("models of FSDP2 are of classes of their own: FSDPModule is asked for", [replace(site.file, compare, build)])


def _asks_for_module(site: Site, part: ast.expr) -> bool:
    """Whether a condition asks for FSDPModule, as this rule has it put there."""
    return any(isinstance(n, (ast.Name, ast.Attribute)) and site.file.external(n) == FSDP_MODULE for n in ast.walk(part))


def _is_wrapper(site: Site, node: ast.expr) -> bool:
    return site.file.external(node) in (FSDP1, DDP)


RULE = Rule(
    id="FS608",
    title="type()",
    symbols=(FSDP1, DDP),
    roles=("type",),
    why="fully_shard gives each model a class of its own: a test of the very class would silently answer no.",
    fallback=asks_both,
    examples=(
        Example(
            before=(
                "from torch.nn.parallel import DistributedDataParallel as DDP\n\n\n"
                "def is_parallel(model):\n    return type(model) is DDP\n\n\n"
                "def f(net, options):\n    return DDP(net, **options)\n"
            ),
            after=(
                "from torch.nn.parallel import DistributedDataParallel as DDP\n"
                "from torch.distributed.fsdp import FSDPModule\n\nfrom fsdp2_helpers import shard_like_ddp\n\n\n"
                "def is_parallel(model):\n    return (isinstance(model, FSDPModule) or type(model) is DDP)\n\n\n"
                "def f(net, options):\n    return shard_like_ddp(net, **options)\n"
            ),
        ),
    ),
    proof=("rank0_average",),
)
