"""FS602: `_fsdp_wrapped_module`."""

from __future__ import annotations

import ast

from ..facts.symbols import FSDP1, FSDP_MODULE
from ..findings import Form, Level
from ..migration import Migration
from ..queries.answers import Answer
from ..queries.unwrapping import unwrapping_choice
from ..queries.wrapper_classes import holds_module
from ..rewrites.helper_calls import attribute_as_call
from ..rule import Example, Outcome, Rule
from ..sites import Site


def the_model_itself(site: Site, migration: Migration) -> Outcome | None:
    """A model that is always sharded is its own module."""
    if site.role != "read" or not migration.is_sharded_here(site) or _holds_module(site, migration):
        return None
    if unwrapping_choice(site.file, site.node) is not None:
        return None
    assert isinstance(site.node, ast.Attribute)
    return Outcome(_MESSAGE, [attribute_as_call(site.file, site.node, "{receiver}")])


def unwrapped(site: Site, migration: Migration) -> Outcome | None:
    """The model itself if it is sharded, else its attribute."""
    assert site.sharding is not None
    node = site.call.func if site.call is not None else site.node
    if site.sharding.answer is Answer.NO:
        return None
    choice, model = site.file.parents[node], site.receiver
    if isinstance(choice, ast.IfExp) and choice.orelse is node and model is not None:
        if ast.unparse(choice.body) == ast.unparse(model):
            return None  # migrated before
    if unwrapping_choice(site.file, node) is not None:
        return Outcome("models of FSDP2 take the other branch, which is right", level=Level.OK)
    if site.role == "store" or not isinstance(node, ast.Attribute) or not _is_path(node.value):
        return Outcome("a model of FSDP2 has no module inside: reading it raises AttributeError", level=Level.MANUAL,
                       form=Form.NOTE, advice="Use the model itself.")  # fmt: skip
    if _holds_module(site, migration):
        return Outcome(_MESSAGE, [attribute_as_call(site.file, node, migration.helper(site, "unwrap") + "({receiver})")])
    sharded = migration.torch(site, FSDP_MODULE)
    name = site.file.text(node.value)
    template = f"({name} if isinstance({name}, {sharded}) else {{receiver}}._fsdp_wrapped_module)"
    return Outcome(_MESSAGE, [attribute_as_call(site.file, node, template)])


def _holds_module(site: Site, migration: Migration) -> bool:
    return site.receiver is not None and holds_module(site.file, site.receiver)


def _is_path(node: ast.expr) -> bool:
    while isinstance(node, ast.Attribute):
        node = node.value
    return isinstance(node, ast.Name)


_MESSAGE = "there is no wrapper to look into: a sharded model is its own module"

RULE = Rule(
    id="FS602",
    title="_fsdp_wrapped_module",
    symbols=(f"{FSDP1}._fsdp_wrapped_module",),
    roles=("read", "call", "store"),
    why="FSDP2 shards in place, so the model that FSDP1 kept in `_fsdp_wrapped_module` is the model itself.",
    idiom=the_model_itself,
    fallback=unwrapped,
    examples=(
        Example(
            before=(
                "from torch.distributed.fsdp import FullyShardedDataParallel as FSDP\n"
                "\n"
                "\n"
                "def f(net, options):\n"
                "    model = FSDP(net, **options)\n"
                "    return model._fsdp_wrapped_module.vocabulary\n"
            ),
            after=(
                "from fsdp2_helpers import shard_like_fsdp1\n"
                "\n"
                "\n"
                "def f(net, options):\n"
                "    model = shard_like_fsdp1(net, **options)\n"
                "    return model.vocabulary\n"
            ),
            level=Level.REVIEW,
        ),
    ),
)
