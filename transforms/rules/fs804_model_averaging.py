"""Local SGD and the averaging of models: training without a reduction in every step."""

from __future__ import annotations

from ..findings import Level
from ..migration import Migration
from ..rule import Example, Outcome, Rule
from ..sites import Site

_AVERAGING = "torch.distributed.algorithms.model_averaging"
_LOCAL = "torch.distributed.optim.PostLocalSGDOptimizer"


def check(site: Site, migration: Migration) -> Outcome:
    if site.role == "keyword":
        return Outcome(Level.MANUAL, "part of the call", silent=True)
    return Outcome(
        Level.MANUAL,
        f"{site.member} lets ranks train apart and averages whole models; sharded models cannot train apart",
        "Stay with DDP (--ddp keep), or shard inside a node and average between nodes with code of your own.",
        holds=site.role in ("call", "use"),
    )


_CODE = (
    "from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager\n"
    "from torch.nn.parallel import DistributedDataParallel as DDP\n\nmodel = DDP(model)\n"
    "averager = PeriodicModelAverager(period=4, warmup_steps=100)\n"
)

RULE = Rule(
    id="FS804",
    title="Local SGD and model averaging",
    why="Ranks of a sharded model hold one part each: no whole models drift apart that could be averaged.",
    symbols=(f"{_AVERAGING}*", _LOCAL, f"{_LOCAL}*"),
    roles=("call", "use", "keyword", "reference", "base", "annotation", "isinstance"),
    check=check,
    sources=("torch/distributed/optim/post_localSGD_optimizer.py",),
    examples=(Example(_CODE, _CODE, Level.MANUAL),),
)
