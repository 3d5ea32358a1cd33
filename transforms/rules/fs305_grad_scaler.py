"""FS305: ShardedGradScaler."""

from __future__ import annotations

import ast

from ..findings import Level
from ..migration import Migration
from ..rewrites.helper_calls import call_instead, name_instead
from ..rule import Example, Outcome, Rule
from ..sites import Site


def scaler(site: Site, migration: Migration) -> Outcome | None:
    """A scaler with the old signature, whose ranks agree on infinities in shards.

    Where no model of FSDP1 is migrated it stays: it may serve shards that somebody cut by hand.
    """
    if "fsdp1" not in migration.wrapper_kinds_near(site.file.path):
        return None
    if site.role in ("test", "classes", "annotation", "base"):
        return Outcome("the scaler is torch.amp's own", [name_instead(site.file, _class(site), migration.torch(site, _AMP))])
    name = migration.helper(site, "sharded_grad_scaler")
    if site.call is not None:
        return Outcome("ranks agree on infinite gradients as before", [call_instead(site.file, site.call, name)])
    assert isinstance(site.node, ast.expr)
    return Outcome("ranks agree on infinite gradients as before", [name_instead(site.file, site.node, name)])


def _class(site: Site) -> ast.expr:
    """The expression of the class: the site of a test is the whole call."""
    if not isinstance(site.node, ast.Call):
        assert isinstance(site.node, ast.expr)
        return site.node
    nodes = (n for n in ast.walk(site.node.args[1]) if isinstance(n, (ast.Name, ast.Attribute)))
    return next(n for n in nodes if site.file.external(n) == site.symbol)


_AMP = "torch.amp.GradScaler"

RULE = Rule(
    id="FS305",
    title="ShardedGradScaler",
    symbols=("torch.distributed.fsdp.sharded_grad_scaler.ShardedGradScaler",),
    roles=("call", "value", "test", "classes", "annotation", "base"),
    why="ShardedGradScaler belongs to FSDP1; torch.amp.GradScaler reduces the search for infinities over sharded gradients.",
    fallback=scaler,
    examples=(
        Example(
            before=(
                "from torch.distributed.fsdp import FullyShardedDataParallel as FSDP\n"
                "from torch.distributed.fsdp.sharded_grad_scaler import ShardedGradScaler\n"
                "\n"
                "\n"
                "def f(net, options, scaler: ShardedGradScaler):\n"
                "    return FSDP(net, **options), scaler.get_scale()\n"
            ),
            after=(
                "from fsdp2_helpers import shard_like_fsdp1\n"
                "from torch.amp import GradScaler\n"
                "\n"
                "\n"
                "def f(net, options, scaler: GradScaler):\n"
                "    return shard_like_fsdp1(net, **options), scaler.get_scale()\n"
            ),
            level=Level.SAFE,
        ),
    ),
    proof=("grad_scaler",),
)
