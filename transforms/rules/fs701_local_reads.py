"""Numbers read off parameters and gradients: norms by hand, statistics, NaN guards."""

from __future__ import annotations

import ast

from ..findings import Level
from ..migration import Migration
from ..rule import Example, Outcome, Rule
from ..sites import Site
from ..training.local_reads import local_reads

_ADVICE = (
    "Compute it from .full_tensor() on every rank, or read the DTensor's value with .full_tensor().item(); for the norm "
    "of all gradients take torch.nn.utils.get_total_norm or what clip_grad_norm_ returns."
)


def check(site: Site, migration: Migration) -> Outcome:
    group = site.group
    assert group is not None
    view, node = site.view, site.node
    assert isinstance(node, ast.expr)
    what = site.member.strip("_")
    if "FSDP1" in group.kinds:
        return Outcome(
            Level.MANUAL,
            f"{what} reads a number off a parameter or gradient: FSDP1 gave this rank's flat shard here, FSDP2 gives this "
            "rank's rows, so the number changes and nothing raises",
            _ADVICE,
            holds=True,
        )
    plain = view.text(node)
    if site.symbol == "torch.Tensor.__bool__" or any(v in group.raw for v in site.values):
        return Outcome(
            Level.MANUAL,
            f"{plain} decides on a parameter or gradient: with shards each rank would see its own part and may take "
            "another way than the rest, which hangs",
            _ADVICE,
            holds=True,
        )
    written = [view.keep(node), ".full_tensor()"]
    if not isinstance(node, (ast.Name, ast.Attribute, ast.Call, ast.Subscript)):
        written = ["(", view.keep(node), ").full_tensor()"]
    outcome = Outcome(
        Level.REVIEW,
        f"{plain} is a DTensor once the model is sharded, and {what} would read this rank's part of it",
        "All ranks have to come here: .full_tensor() is a collective.",
    )
    outcome.patches.append(view.replace(node, written, "a DTensor is read as a whole"))
    return outcome


_HEAD = """\
import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard

"""
_DDP = """\
import torch
from torch.nn.parallel import DistributedDataParallel as DDP

model = DDP(build())
for step in range(3):
    model(batch(step)).sum().backward()
    total = 0.0
    for p in model.parameters():
        total += p.grad.norm().item() ** 2
    print(total)
"""
_FSDP = """\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

model = FSDP(build())
model(batch()).sum().backward()
if any(p.grad.isnan().any() for p in model.parameters()):
    raise SystemExit("diverged")
print(next(model.parameters()).abs().max().item())
"""

RULE = Rule(
    id="FS701",
    title="Numbers read off sharded parameters",
    why=(
        "Arithmetic on DTensors is right, but .item(), float(), formatting or an if take this rank's part of the result. "
        "Measured: a gradient norm summed up by hand came out as 0.505 and 0.482 on two ranks instead of 0.699; a NaN in "
        "one shard is seen by one rank only, so that ranks part ways and hang. Nothing raises."
    ),
    symbols=("torch.Tensor.*",),
    roles=("hazard",),
    check=check,
    advice=_ADVICE,
    sources=("torch/distributed/tensor/_api.py: DTensor.full_tensor", "semantics measured on torch 2.13, two ranks"),
    examples=(
        Example(before=_FSDP, after=_FSDP, level=Level.MANUAL, note="what FSDP1 showed here was a flat shard as well"),
    ),
    find=local_reads,
)
