"""Parameters that a step leaves out: zero gradients under FSDP1, none under FSDP2."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from ..analysis.values import Instance
from ..findings import Level
from ..migration import Migration
from ..rule import Example, Outcome, Rule
from ..sharding.model_code import classes_of
from ..sites import Site
from ..training.left_out import left_out

_SYMBOL = "torch.nn.Module.left_out"


def find(migration: Migration) -> Iterator[Site]:
    """Layers of FSDP1's models that a forward may leave out, by the code of their classes."""
    known: set[ast.AST] = set()
    for group in migration.groups.all:
        models = [value for value in group.raw if isinstance(value, Instance)] if "FSDP1" in group.kinds else []
        for model in sorted(models, key=lambda value: (value.cls.file, value.cls.index, value.site)):
            classes = list(classes_of(migration, model.cls))
            for view, owner in classes:
                for node in left_out(view, owner, [cls for _, cls in classes]):
                    if node not in known:
                        known.add(node)
                        yield Site(view, node, _SYMBOL, "hazard", group)


def check(site: Site, migration: Migration) -> Outcome:
    view, node = site.view, site.node
    if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
        what = f"nothing runs {view.text(node)}"
    else:
        what = f"{view.text(node)} decides which layers a step runs"
    return Outcome(
        Level.REVIEW,
        f"{what}: FSDP1 gave what a step leaves out of a unit gradients of zero, so that weight decay and momentum went on, "
        "and ranks could differ; FSDP2 gives it none, the optimizer leaves it as it is, and ranks that leave out different "
        "layers stop or add up gradients of different layers",
        "model.set_reduce_scatter_unused_params(True) behind fully_shard (torch 2.13) gives zeros as FSDP1 did; layers that are "
        "never used are best frozen or removed.",
    )


_BEFORE = """\
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


class Encoder(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.body = torch.nn.Linear(8, 8)
        self.pooler = torch.nn.Linear(8, 8)

    def forward(self, x):
        return self.body(x)


model = FSDP(Encoder())
optimizer = torch.optim.AdamW(model.parameters())
"""
_AFTER = _BEFORE.replace("FullyShardedDataParallel as FSDP", "fully_shard").replace(
    "model = FSDP(Encoder())", "model = Encoder()\nfully_shard(model)"
)

RULE = Rule(
    id="FS315",
    title="Layers that a step leaves out",
    why=(
        "FSDP1 reduces one flat gradient for each unit, in which a layer that took no part is zero: AdamW decays its weights "
        "and goes on with its momentum. FSDP2 reduces parameter by parameter and gives such layers no gradient. Measured with "
        "two heads in turn and an unused layer, weights differ by 1e-1 after six steps, without an error."
    ),
    symbols=(_SYMBOL,),
    roles=("hazard",),
    check=check,
    find=find,
    sources=(
        "torch/distributed/fsdp/_fully_shard/_fsdp_param_group.py: post_backward",
        "heads in turn under FSDP1 and FSDP2 on torch 2.13, with set_reduce_scatter_unused_params equal bit by bit",
    ),
    examples=(Example(_BEFORE, _AFTER, Level.REVIEW),),
)
