"""FS307: apex.amp, which unscales gradients with kernels of its own."""

from __future__ import annotations

from ..findings import Form, Level
from ..migration import Migration
from ..rule import Example, Outcome, Rule
from ..sites import Site


def told(site: Site, migration: Migration) -> Outcome | None:
    """Nothing general is right: the kernels take no DTensors, and each rank would look for infinities in its own shard."""
    if not migration.wrapper_kinds_near(site.file.path):
        return None
    message = "apex.amp unscales gradients by kernels that take no sharded ones, and ranks would not agree on infinities"
    advice = "torch.autocast and torch.amp.GradScaler do the same with shards"
    return Outcome(message, level=Level.MANUAL, form=Form.NOTE, advice=advice)


RULE = Rule(
    id="FS307",
    title="apex.amp",
    symbols=("apex.amp.initialize", "apex.amp.frontend.initialize"),
    roles=("call",),
    why="apex.amp looks at gradients below torch's dispatcher, where a DTensor has no memory; nobody maintains it any more.",
    fallback=told,
    examples=(
        Example(
            before=(
                "from apex import amp\n"
                "from torch.nn.parallel import DistributedDataParallel as DDP\n"
                "\n"
                "\n"
                "def f(net, optimizer, options):\n"
                '    net, optimizer = amp.initialize(net, optimizer, opt_level="O1")\n'
                "    return DDP(net, **options), optimizer\n"
            ),
            after=(
                "from apex import amp\n"
                "from fsdp2_helpers import shard_like_ddp\n"
                "\n"
                "\n"
                "def f(net, optimizer, options):\n"
                '    net, optimizer = amp.initialize(net, optimizer, opt_level="O1")\n'
                "    return shard_like_ddp(net, **options), optimizer\n"
            ),
            level=Level.MANUAL,
        ),
    ),
)
