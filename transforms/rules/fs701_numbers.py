"""FS701: numbers that are computed from parameters or gradients and read on every rank."""

from __future__ import annotations

from ..findings import Level
from ..migration import Migration
from ..queries.guards import Guards
from ..rewrites.helper_calls import around
from ..rule import Example, Outcome, Rule
from ..sites import NUMBER, Site


def read_whole(site: Site, migration: Migration) -> Outcome | None:
    """What is read is gathered first, as every rank had it under DDP. FSDP1 showed each rank its own part."""
    assert site.sharding is not None and site.receiver is not None
    if site.sharding.wrappers != {"ddp"} or migration.is_before_wrap(site):
        return None
    if Guards(migration.program).of(site.file, site.node):
        return None  # a gather that only some ranks make would hang: the run tells
    name = migration.helper(site, "whole")
    return Outcome("a norm or another number of sharded tensors is that of the whole: each rank would read its own part's",
                   [around(site.file, site.receiver, f"{name}({{it}})")])  # fmt: skip


RULE = Rule(
    id="FS701",
    title="numbers read off parameters",
    symbols=(NUMBER,),
    roles=("call",),
    why="`.item()` of a norm over a sharded tensor is the number of this rank's part, without an error.",
    fallback=read_whole,
    examples=(
        Example(
            before=(
                "import torch\n"
                "from torch.nn.parallel import DistributedDataParallel as DDP\n"
                "\n"
                "\n"
                "def f(net, options, x):\n"
                "    model = DDP(net, **options)\n"
                "    model(x).sum().backward()\n"
                "    return sum(torch.norm(p.grad).item() ** 2 for p in model.parameters())\n"
            ),
            after=(
                "import torch\n"
                "from fsdp2_helpers import shard_like_ddp, whole\n"
                "\n"
                "\n"
                "def f(net, options, x):\n"
                "    model = shard_like_ddp(net, **options)\n"
                "    model(x).sum().backward()\n"
                "    return sum(whole(torch.norm(p.grad)).item() ** 2 for p in model.parameters())\n"
            ),
            level=Level.REVIEW,
        ),
    ),
)
