"""FS421: work on sharded models in threads and in handlers of signals, which each rank runs at a time of its own."""

from __future__ import annotations

from ..findings import Form, Level
from ..guarded import DEFERRED
from ..migration import Migration
from ..queries.backwards import is_in_training
from ..rule import Example, Outcome, Rule
from ..sites import Site


def named(site: Site, migration: Migration) -> Outcome | None:
    """Nothing is rewritten: when a thread or a signal comes to it, no other rank knows. Where a thread trains, all do."""
    hidden = migration.hidden[site.node]
    if any(is_in_training(*place) for item in hidden for place in (*item.calls[1:], (item.file, item.node))):
        return None
    first = min(hidden, key=lambda item: (item.file.path, item.node.lineno))  # type: ignore[attr-defined]
    place = f"{first.file.path}:{first.node.lineno}"  # type: ignore[attr-defined]
    return Outcome(_MESSAGE.format(place=place), level=Level.MANUAL, form=Form.NOTE, advice=_ADVICE)


_MESSAGE = "{place} takes all ranks at once; a thread or signal comes to it on each rank alone, beside training: they hang"
_ADVICE = "Let it set a flag, all_reduce the flag in the training loop, and do the work there, on all ranks."

RULE = Rule(
    id="FS421",
    title="threads and signals",
    symbols=(DEFERRED,),
    roles=("guard",),
    why="What gathers takes all ranks at the same point of their work: threads and signal handlers come to it at any point.",
    fallback=named,
    examples=(
        Example(
            before=(
                "import signal\n"
                "\n"
                "import torch\n"
                "from torch.nn.parallel import DistributedDataParallel as DDP\n"
                "\n"
                "\n"
                "def f(net, options, path):\n"
                "    model = DDP(net, **options)\n"
                "\n"
                "    def save(number, frame):\n"
                "        torch.save(model.module.state_dict(), path)\n"
                "\n"
                "    signal.signal(signal.SIGUSR1, save)\n"
            ),
            after=(
                "import signal\n"
                "\n"
                "import torch\n"
                "\n"
                "from fsdp2_helpers import shard_like_ddp\n"
                "\n"
                "\n"
                "def f(net, options, path):\n"
                "    model = shard_like_ddp(net, **options)\n"
                "\n"
                "    def save(number, frame):\n"
                "        torch.save(model.state_dict(), path)\n"
                "\n"
                "    signal.signal(signal.SIGUSR1, save)\n"
            ),
            level=Level.MANUAL,
        ),
    ),
)
