"""Norms and other statistics that optimizers and penalties take of parameters and gradients behind FSDP1."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from ..analysis.values import Derived
from ..findings import Level
from ..migration import Migration
from ..rule import Example, Outcome, Rule
from ..sites import Site
from ..training.local_reads import runs_on_shards, tensor_values
from ..training.passes import outside_name
from ..view import FileView

_SYMBOL = "torch.Tensor.statistic"
_STATISTICS = frozenset(
    {"norm", "mean", "std", "var", "sum", "prod", "max", "min", "amax", "amin", "median", "quantile", "logsumexp", "argmax",
     "argmin", "dot", "vector_norm"}
)  # fmt: skip
_WHOLE = frozenset({"parameters", "gradients"})
"""What is met as FSDP1 keeps it; of what is computed from it, the first statistic is named alone."""


def find(migration: Migration) -> Iterator[Site]:
    """Statistics of single parameters and gradients of an FSDP1 model that stay tensors."""
    for view in migration.views():
        known = {site.node for site in migration.sites[view.path] if site.symbol.startswith("torch.Tensor.")}
        for call in view.nodes(ast.Call):
            tensor = _of_what(view, call)
            if tensor is None or call in known or any(ancestor in known for ancestor in view.ancestors(call)):
                continue
            group, values = tensor_values(migration, view, tensor)
            if group is None or "FSDP1" not in group.kinds or not all(_is_whole(v) for v in values if isinstance(v, Derived)):
                continue
            if runs_on_shards(migration, view, call, group):
                yield Site(view, call, _SYMBOL, "hazard", group, values)


def _of_what(view: FileView, call: ast.Call) -> ast.expr | None:
    """The tensor that a call takes a statistic of: ``p.norm(2)``, ``torch.norm(p)``."""
    if not isinstance(call.func, ast.Attribute) or call.func.attr not in _STATISTICS:
        return None
    name = outside_name(view, call.func)
    if name is not None and name.startswith("torch."):
        return call.args[0] if call.args else None
    return call.func.value


def _is_whole(value: Derived) -> bool:
    return value.kind in _WHOLE


def check(site: Site, migration: Migration) -> Outcome:
    return Outcome(
        Level.REVIEW,
        f"{site.view.text(site.node)} was taken over this rank's piece of the tensor behind FSDP1, another one on each rank; "
        "with FSDP2 it is that of the whole tensor, and what goes by it changes",
        "Usually that is what was meant all along, as trust ratios and norms of gradients are defined for whole tensors. "
        "Rates and thresholds that were tuned on pieces may want to be tuned again.",
    )


_BEFORE = """\
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

model = FSDP(build(), use_orig_params=True)
model(batch()).sum().backward()
with torch.no_grad():
    for p in model.parameters():
        p.sub_(p.grad * (p.norm() / p.grad.norm()))
"""
_AFTER = """\
import torch
from torch.distributed.fsdp import fully_shard

model = build()
fully_shard(model)
model(batch()).sum().backward()
with torch.no_grad():
    for p in model.parameters():
        p.sub_(p.grad * (p.norm() / p.grad.norm()))
"""

RULE = Rule(
    id="FS707",
    title="Statistics of FSDP1's pieces of parameters",
    why=(
        "What FSDP1 shows of a parameter or gradient between the passes is this rank's piece, so that LAMB's trust ratio or "
        "SAM's norm is another number on each rank. A DTensor's norm is that of the whole tensor. Measured with LAMB on two "
        "ranks, weights differ by 6e-3 after six steps, without an error."
    ),
    symbols=(_SYMBOL,),
    roles=("hazard",),
    check=check,
    find=find,
    sources=("LAMB and SAM behind FSDP1 and FSDP2 compared on torch 2.13, two ranks",),
    examples=(Example(_BEFORE, _AFTER, Level.REVIEW),),
)
