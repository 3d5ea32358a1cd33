"""FS719: loops that ranks leave at different times, with calls of a model in them."""

from __future__ import annotations

from ..findings import Form, Level
from ..migration import Migration
from ..rule import Example, Outcome, Rule
from ..sites import UNEVEN_CALL, Site


def named(site: Site, migration: Migration) -> Outcome | None:
    """Nothing is rewritten: which rank is through, the others do not know."""
    if migration.is_before_wrap(site) or migration.is_held(site.file, site.node):
        return None
    return Outcome(_MESSAGE, level=Level.REVIEW, form=Form.NOTE, advice=_ADVICE)


_MESSAGE = "ranks may leave this loop at different times: each forward of a sharded model takes all of them, DDP's did not"
_ADVICE = "Let all ranks go on until the last one is through (all_reduce the condition), or keep DDP for this model."

RULE = Rule(
    id="FS719",
    title="forwards in loops of unequal length",
    symbols=(UNEVEN_CALL,),
    roles=("call",),
    why="DDP communicates in the backward alone; units of fully_shard gather in each forward: a rank that has left is missed.",
    fallback=named,
    examples=(
        Example(
            before=(
                "from torch.nn.parallel import DistributedDataParallel as DDP\n"
                "\n"
                "\n"
                "def f(net, options, game):\n"
                "    model = DDP(net, **options)\n"
                "    total = 0\n"
                "    while not game.ended.all():\n"
                "        total = total + game.step(model(game.state))\n"
                "    total.backward()\n"
            ),
            after=(
                "from fsdp2_helpers import shard_like_ddp\n"
                "\n"
                "\n"
                "def f(net, options, game):\n"
                "    model = shard_like_ddp(net, **options)\n"
                "    total = 0\n"
                "    while not game.ended.all():\n"
                "        total = total + game.step(model(game.state))\n"
                "    total.backward()\n"
            ),
            level=Level.REVIEW,
        ),
    ),
)
