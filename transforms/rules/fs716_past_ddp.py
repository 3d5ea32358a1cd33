"""FS716: forwards of a model past DDP: `model.module(x)`."""

from __future__ import annotations

from ..findings import Level
from ..migration import Migration
from ..rewrites.helper_calls import around
from ..rule import Example, Outcome, Rule
from ..sites import PAST_DDP, Site


def own_buffers(site: Site, migration: Migration) -> Outcome | None:
    """A forward that keeps each rank's own buffers, where the wrapper's sent the first rank's to all."""
    assert site.call is not None
    if not migration.follows_buffers or migration.is_held(site.file, site.call):
        return None
    if migration.is_before_wrap(site) or migration.is_fresh(site.file, site.call, site.call.func):
        return None
    name = migration.helper(site, "past_ddp")
    return Outcome("past DDP a forward used each rank's own buffers, as it does now",
                   [around(site.file, site.call.func, f"{name}({{it}})")])  # fmt: skip


RULE = Rule(
    id="FS716",
    title="forwards past DDP",
    symbols=(PAST_DDP,),
    roles=("call",),
    why="DDP sent the first rank's buffers in front of its own forward, not of one of the module that it had wrapped.",
    fallback=own_buffers,
    examples=(
        Example(
            before=(
                "from torch import nn\n"
                "from torch.nn.parallel import DistributedDataParallel as DDP\n"
                "\n"
                "\n"
                "def f(options, x):\n"
                "    model = DDP(nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2)), **options)\n"
                "    model(x).sum().backward()\n"
                "    return model.module(x)\n"
            ),
            after=(
                "from torch import nn\n"
                "from fsdp2_helpers import past_ddp, shard_like_ddp\n"
                "\n"
                "\n"
                "def f(options, x):\n"
                "    model = shard_like_ddp(nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2)), **options)\n"
                "    model(x).sum().backward()\n"
                "    return past_ddp(model)(x)\n"
            ),
            level=Level.REVIEW,
        ),
    ),
)
