"""Optimizers whose steps sharded parameters refuse, or which come out otherwise on them."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from ..findings import Level
from ..migration import Migration
from ..rule import Example, Outcome, Rule
from ..sites import Site

_SYMBOL = "torch.optim.refusing"
_REFUSED = {
    "LBFGS": "LBFGS flattens all gradients into one vector, which DTensors of uneven shards refuse: its first step raises",
    "Adafactor": "Adafactor keeps one number for each row and column, and works in place between these and the gradient, which "
    "DTensors refuse: its first step raises",
    "Rprop": "Rprop writes into its gradients by index, which DTensors refuse: its first step raises",
    "Adagrad": "the fused step of Adagrad has no form for DTensors: its first step raises",
}
_FUSED_ALONE = frozenset({"Adagrad"})
_ADVICE = {
    "LBFGS": "Keep DDP for this model (--ddp keep), or train it with an optimizer that works on each parameter by itself.",
    "Adafactor": "Keep DDP for this model (--ddp keep), or train it with another optimizer. Behind FSDP1 all parameters were "
    "one-dimensional pieces, for which Adafactor keeps as much as Adam does: nothing is lost by AdamW there.",
    "Rprop": "Keep DDP for this model (--ddp keep), or train it with another optimizer.",
    "Adagrad": "Leave fused=True out: the other steps of Adagrad take DTensors and give the same numbers.",
}


def find(migration: Migration) -> Iterator[Site]:
    """Optimizers of these kinds over a model of a group."""
    for group in migration.groups.all:
        for optimizer in group.optimizers:
            package, _, name = optimizer.name.rpartition(".")
            known = package.startswith("torch.optim") or (name == "Adafactor" and package.startswith("transformers"))
            if not known or name not in (*_REFUSED, "Muon"):
                continue
            view, call = migration.program.call_node(optimizer.site)
            if name not in _FUSED_ALONE or _asks_for_fused(call):
                yield Site(view, call, f"{_SYMBOL}.{name}", "hazard", group, (optimizer,), call)


def _asks_for_fused(call: ast.Call) -> bool:
    return any(k.arg == "fused" and not (isinstance(k.value, ast.Constant) and not k.value.value) for k in call.keywords)


def check(site: Site, migration: Migration) -> Outcome:
    if site.member == "Muon":
        return Outcome(
            Level.REVIEW,
            "Muon makes updates orthogonal by products in bfloat16, which are summed over the ranks for a sharded parameter: "
            "they round in another order (weights differed by 3e-3 after four steps), and each product is communicated",
        )
    return Outcome(Level.MANUAL, _REFUSED[site.member], _ADVICE[site.member], holds=True)


_BEFORE = """\
import torch
from torch.nn.parallel import DistributedDataParallel as DDP

model = DDP(build())
optimizer = torch.optim.LBFGS(model.parameters(), lr=0.1)
"""

RULE = Rule(
    id="FS504",
    title="Optimizers that do not take sharded parameters",
    why=(
        "LBFGS keeps its history as flat vectors over all parameters. A gradient that is sharded by rows cannot be viewed "
        "as a vector, so the first step raises; where it can be, the search compares numbers that each rank has of its own. "
        "Others work in place where a DTensor would have to be laid out anew, or have fused steps without a form for DTensors."
    ),
    symbols=(f"{_SYMBOL}.*",),
    roles=("hazard",),
    check=check,
    find=find,
    sources=(
        "torch/optim/lbfgs.py: _gather_flat_grad",
        "steps of the optimizers of torch.optim, and of transformers.Adafactor, on a sharded model on torch 2.13",
    ),
    examples=(Example(_BEFORE, _BEFORE, Level.MANUAL),),
)
