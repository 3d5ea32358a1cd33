"""FS605: classes derived from the wrappers."""

from __future__ import annotations

import ast

import libcst as cst

from ..facts.symbols import DDP, FSDP1
from ..findings import Form, Level
from ..migration import Migration
from ..queries.own_reduction import reduces_itself
from ..rewrites.changes import replace
from ..rewrites.helper_calls import name_instead
from ..rewrites.templates import expression
from ..rule import Example, Outcome, Rule
from ..sites import Site

_OWN_METHODS = ("__init__", "forward", "__getattr__", "train", "state_dict", "named_parameters", "named_buffers")


def other_base(site: Site, migration: Migration) -> Outcome | None:
    """A base class of the same arguments that shards itself together with the module that it holds."""
    if not migration.options.wraps:
        return None
    is_ddp = site.symbol.startswith(DDP)
    if is_ddp and migration.options.ddp == "keep":
        return Outcome("DDP stays, as asked for", level=Level.OK)
    if is_ddp and reduces_itself(site.file, site.file.enclosing_class(site.node)):
        return Outcome(_STAYS, level=Level.REVIEW, form=Form.NOTE, advice=_TO_DISPATCH) if site.role == "base" else None
    name = migration.helper(site, "ShardedLikeDDP" if is_ddp else "ShardedLikeFSDP1")
    if site.role == "base":
        assert isinstance(site.node, ast.expr)
        change = name_instead(site.file, site.node, name)
    else:
        method = site.member

        def build(node: cst.CSTNode) -> cst.CSTNode:
            assert isinstance(node, cst.Call)
            return node.with_changes(func=expression(f"{name}.{method}"))

        change = replace(site.file, site.node, build)
    return Outcome("the base class shards itself with the module inside; its `.module`, methods and state dict are as before",
                   [change], Level.REVIEW)  # fmt: skip


_STAYS = "DDP stays: this class works on DDP's reducer, which fully_shard has not"
_TO_DISPATCH = "Let its forward only call a method, as `return self.module.training_step(*inputs)`: then it is sharded."

RULE = Rule(
    id="FS605",
    title="subclasses of wrappers",
    symbols=(DDP, FSDP1, *(f"{owner}.{method}" for owner in (DDP, FSDP1) for method in _OWN_METHODS)),
    roles=("base", "call"),
    why="fully_shard has no class to derive from: a class of the program has to hold the module and be sharded itself.",
    fallback=other_base,
    examples=(
        Example(
            before=(
                "from torch.nn.parallel import DistributedDataParallel as DDP\n"
                "\n"
                "\n"
                "class Wrapper(DDP):\n"
                "    def forward(self, *args):\n"
                "        return self.module(*args)\n"
            ),
            after=(
                "from fsdp2_helpers import ShardedLikeDDP\n"
                "\n"
                "\n"
                "class Wrapper(ShardedLikeDDP):\n"
                "    def forward(self, *args):\n"
                "        return self.module(*args)\n"
            ),
            level=Level.REVIEW,
        ),
    ),
)
