"""``torch.optim.LBFGS``: it flattens all gradients into one vector."""

from __future__ import annotations

from collections.abc import Iterator

from ..findings import Level
from ..migration import Migration
from ..rule import Example, Outcome, Rule
from ..sites import Site

SYMBOL = "torch.optim.LBFGS"


def find(migration: Migration) -> Iterator[Site]:
    """Optimizers of this kind over a model of a group."""
    for group in migration.groups.all:
        for optimizer in group.optimizers:
            if optimizer.name.endswith(".LBFGS"):
                view, call = migration.program.call_node(optimizer.site)
                yield Site(view, call, SYMBOL, "hazard", group, (optimizer,), call)


def check(site: Site, migration: Migration) -> Outcome:
    return Outcome(
        Level.MANUAL,
        "LBFGS flattens all gradients into one vector, which DTensors of uneven shards refuse: its first step raises",
        "Keep DDP for this model (--ddp keep), or train it with an optimizer that works on each parameter by itself.",
        holds=True,
    )


_BEFORE = """\
import torch
from torch.nn.parallel import DistributedDataParallel as DDP

model = DDP(build())
optimizer = torch.optim.LBFGS(model.parameters(), lr=0.1)
"""

RULE = Rule(
    id="FS504",
    title="LBFGS does not take sharded parameters",
    why=(
        "LBFGS keeps its history as flat vectors over all parameters. A gradient that is sharded by rows cannot be viewed "
        "as a vector, so the first step raises; where it can be, the search compares numbers that each rank has of its own."
    ),
    symbols=(SYMBOL,),
    roles=("hazard",),
    check=check,
    find=find,
    sources=("torch/optim/lbfgs.py: _gather_flat_grad", "a step on a sharded model on torch 2.13"),
    examples=(Example(_BEFORE, _BEFORE, Level.MANUAL),),
)
