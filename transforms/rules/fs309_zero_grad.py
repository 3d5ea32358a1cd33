"""FS309: `zero_grad()` of models."""

from __future__ import annotations

from ..findings import Level
from ..migration import Migration
from ..rewrites.gradient_resets import ZERO_GRAD, resets_model
from ..rule import Example, Outcome, Rule
from ..sites import Site


def left_to_the_wrap(site: Site, migration: Migration) -> Outcome | None:
    """The wrap lets `zero_grad` of modules reset the gradients of shards, where something else may be registered."""
    if not resets_model(migration.sharding, site) or migration.is_before_wrap(site):
        return None
    return Outcome("the wrap lets it reset the gradients of shards, also behind a forward without backward", level=Level.OK)


RULE = Rule(
    id="FS309",
    title="zero_grad() of a model",
    symbols=(ZERO_GRAD,),
    roles=("call",),
    why="After a forward without backward, gathered parameters stay registered: zero_grad() silently misses the shards.",
    idiom=None,
    fallback=left_to_the_wrap,
    examples=(
        Example(
            before=(
                "from torch.nn.parallel import DistributedDataParallel as DDP\n\n\n"
                "def f(net, options):\n    model = DDP(net, **options)\n    model.zero_grad()\n"
            ),
            after=(
                "from fsdp2_helpers import shard_like_ddp\n\n\n"
                "def f(net, options):\n    model = shard_like_ddp(net, **options)\n    model.zero_grad()\n"
            ),
            level=Level.OK,
        ),
    ),
    proof=("gan_ddp",),
)
