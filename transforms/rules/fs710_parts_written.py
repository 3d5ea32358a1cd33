"""FS710: tensors that are read off a model and written in place."""

from __future__ import annotations

import ast

import libcst as cst

from ..findings import Level
from ..migration import Migration
from ..rewrites.changes import replace
from ..rewrites.templates import expression
from ..rule import Example, Outcome, Rule
from ..sites import PART, Site


def laid_out(site: Site, migration: Migration) -> Outcome | None:
    """What is written is laid out as the parameter is: sharded, or whole."""
    call = site.call
    assert call is not None and isinstance(call.func, ast.Attribute)
    if migration.is_before_wrap(site):
        return None
    name = migration.helper(site, "laid_out_like")
    places = [place for place, value in enumerate(call.args) if not isinstance(value, (ast.Constant, ast.Starred))]

    def build(node: cst.CSTNode) -> cst.CSTNode:
        assert isinstance(node, cst.Call) and isinstance(node.func, cst.Attribute)
        target = node.func.value
        while isinstance(target, cst.Call) and isinstance(target.func, cst.Attribute):
            target = target.func.value
        arguments = list(node.args)
        for place in places:
            value = expression(f"{name}({{it}}, {{target}})", it=arguments[place].value, target=target.deep_clone())
            arguments[place] = arguments[place].with_changes(value=value)
        return node.with_changes(args=arguments)

    return Outcome(_MESSAGE, [replace(site.file, call, build)]) if places else None


_MESSAGE = "what a model's parameter is written from is laid out as it is: sharded or whole"

RULE = Rule(
    id="FS710",
    title="parameters written in place",
    symbols=(PART,),
    roles=("call",),
    why="A sharded parameter refuses plain tensors: `copy_` and its kin raise for mixed torch.Tensor and DTensor.",
    fallback=laid_out,
    examples=(
        Example(
            before=(
                "import torch\n"
                "from torch.nn.parallel import DistributedDataParallel as DDP\n"
                "\n"
                "\n"
                "@torch.no_grad()\n"
                "def f(net, options, centers):\n"
                "    model = DDP(net, **options)\n"
                "    for name, center in centers.items():\n"
                "        getattr(model.module.heads, name).weight.copy_(center)\n"
            ),
            after=(
                "import torch\n"
                "from fsdp2_helpers import laid_out_like, shard_like_ddp\n"
                "\n"
                "\n"
                "@torch.no_grad()\n"
                "def f(net, options, centers):\n"
                "    model = shard_like_ddp(net, **options)\n"
                "    for name, center in centers.items():\n"
                "        getattr(model.heads, name).weight.copy_(laid_out_like(center, getattr(model.heads, name).weight))\n"
            ),
            level=Level.REVIEW,
        ),
    ),
)
