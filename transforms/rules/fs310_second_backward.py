"""FS310: a backward behind another one, with no forward in between."""

from __future__ import annotations

from ..findings import Form, Level
from ..migration import Migration
from ..rule import Example, Outcome, Rule
from ..sites import SECOND_BACKWARD, Site


def named(site: Site, migration: Migration) -> Outcome | None:
    """Nothing is rewritten: shards cannot keep what each rank computed alone."""
    return Outcome(_MESSAGE, level=Level.REVIEW, form=Form.NOTE, advice=_ADVICE)


_MESSAGE = "DDP left the gradients of a second backward without a forward in between as each rank had them; now they are averaged"
_ADVICE = "Ranks no longer drift apart; where each was to train on its own gradients, keep DDP for this model."

RULE = Rule(
    id="FS310",
    title="a second backward",
    symbols=(SECOND_BACKWARD,),
    roles=("call",),
    why="DDP reduces the gradients of one backward after each forward; fully_shard reduces those of every backward.",
    fallback=named,
    examples=(
        Example(
            before=(
                "from torch.nn.parallel import DistributedDataParallel as DDP\n"
                "\n"
                "\n"
                "def f(net, options, fake, real):\n"
                "    critic = DDP(net, **options)\n"
                "    judged, other = critic(fake).mean(), critic(real).mean()\n"
                "    judged.backward(retain_graph=True)\n"
                "    other.backward()\n"
            ),
            after=(
                "from fsdp2_helpers import shard_like_ddp\n"
                "\n"
                "\n"
                "def f(net, options, fake, real):\n"
                "    critic = shard_like_ddp(net, **options)\n"
                "    judged, other = critic(fake).mean(), critic(real).mean()\n"
                "    judged.backward(retain_graph=True)\n"
                "    other.backward()\n"
            ),
            level=Level.REVIEW,
        ),
        Example(
            before=(
                "from torch.nn.parallel import DistributedDataParallel as DDP\n"
                "\n"
                "\n"
                "def f(net, options, x):\n"
                "    model = DDP(net, **options)\n"
                "    out = model(x)\n"
                "    with model.no_sync():\n"
                "        out.mean().backward(retain_graph=True)\n"
                "    out.square().mean().backward()\n"
            ),
            after=(
                "from fsdp2_helpers import no_gradient_sync, shard_like_ddp\n"
                "\n"
                "\n"
                "def f(net, options, x):\n"
                "    model = shard_like_ddp(net, **options)\n"
                "    out = model(x)\n"
                "    with no_gradient_sync(model):\n"
                "        out.mean().backward(retain_graph=True)\n"
                "    out.square().mean().backward()\n"
            ),
            level=Level.REVIEW,
            note="DDP decides at the forward: the first backward reduced, whatever no_sync() around it says.",
        ),
    ),
)
