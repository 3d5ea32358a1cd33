"""``Join``: uneven inputs over the ranks."""

from __future__ import annotations

from ..analysis.symbols import DDP
from ..findings import Level
from ..migration import Migration
from ..rule import Example, Outcome, Rule
from ..sites import Site

_JOIN = "torch.distributed.algorithms.join"


def check(site: Site, migration: Migration) -> Outcome:
    if site.role == "keyword":
        return Outcome(Level.MANUAL, "part of the call", silent=True)
    return Outcome(
        Level.MANUAL,
        f"{site.member} has no counterpart: a rank that runs out of batches leaves the others waiting in FSDP2",
        "Go on until no rank has a batch left (all_reduce a flag before each step): finished ranks run forward and "
        "backward on a dummy batch with loss * 0.0, and clip and step like the others. This divides by all ranks, as "
        "Join does by default.",
        holds=site.role != "reference",
    )


_CODE = (
    "from torch.distributed.algorithms.join import Join\n"
    "from torch.nn.parallel import DistributedDataParallel as DDP\n\n"
    "model = DDP(model)\nwith Join([model]):\n    for x in data:\n        model(x).sum().backward()\n"
)

RULE = Rule(
    id="FS802",
    title="Join has no counterpart",
    why=(
        "Join shadows the collectives of ranks that have run out of inputs. FSDP2's collectives are not joinable, so "
        "the ranks that still have inputs wait for ever."
    ),
    symbols=(
        f"{_JOIN}.*", f"{DDP}.join", f"{DDP}.join_hook", f"{DDP}.join_device", f"{DDP}.join_process_group",
    ),
    roles=("call", "use", "keyword", "reference", "base", "annotation", "isinstance"),
    check=check,
    sources=("torch/distributed/algorithms/join.py",),
    examples=(Example(_CODE, _CODE, Level.MANUAL),),
)  # fmt: skip
