"""``model.forward(x)`` on a wrapped model: FSDP2 gathers parameters in hooks, which only ``model(x)`` runs."""

from __future__ import annotations

import ast

from ..findings import Level
from ..migration import Migration
from ..rule import Example, Outcome, Rule
from ..sites import Site
from ..text.patches import Patch


def check(site: Site, migration: Migration) -> Outcome:
    """A call of ``forward`` becomes a call of the model."""
    view, node = site.view, site.node
    if not isinstance(node, ast.Attribute) or site.call is None:
        return Outcome(
            Level.MANUAL,
            "forward is taken off the model or replaced on it",
            "FSDP2 gathers parameters in forward hooks; hand on the model itself, or wrap forward before sharding.",
            holds=True,
        )
    outcome = Outcome(Level.REVIEW, "the model is called, so that the hooks that gather its parameters run")
    start, end = view.source.span(node.value)[1], view.source.span(node)[1]
    outcome.patches.append(Patch(view.path, start, end, (), "hooks run on model(x), not on model.forward(x)"))
    return outcome


_WRAP = "import torch\nfrom torch.distributed.fsdp import FullyShardedDataParallel as FSDP\n\nmodel = FSDP(build())\n"
_SHARD = "import torch\nfrom torch.distributed.fsdp import fully_shard\n\nmodel = build()\nfully_shard(model)\n"

RULE = Rule(
    id="FS306",
    title="model.forward(x) becomes model(x)",
    why=(
        "FSDP1 and DDP do their work in their own forward, FSDP2 in hooks around the model's. Called by hand, forward "
        "meets parameters that are still sharded and raises a mixed Tensor and DTensor error."
    ),
    symbols=(
        "torch.distributed.fsdp.FullyShardedDataParallel.forward",
        "torch.nn.parallel.DistributedDataParallel.forward",
    ),
    roles=("use",),
    check=check,
    sources=("torch/distributed/fsdp/_fully_shard/_fully_shard.py: register_fsdp_forward_method",),
    examples=(
        Example(
            _WRAP + "loss = model.forward(x).mean()\n", _SHARD + "loss = model(x).mean()\n", Level.REVIEW
        ),
    ),
)
