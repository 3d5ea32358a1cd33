"""Sums that begin with a plain tensor: ``total = torch.zeros(()); total += p.grad.norm() ** 2``."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from ..analysis.values import Opaque
from ..findings import Level
from ..migration import Migration
from ..rule import Example, Outcome, Rule
from ..sites import Site
from ..training.local_reads import runs_on_shards, tensor_values

_SYMBOL = "torch.Tensor.__iadd__"
_OPERATORS: dict[type[ast.operator], str] = {ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.Div: "/"}
_PLAIN = frozenset(f"torch.{name}" for name in ("tensor", "as_tensor", "zeros", "ones", "full", "empty", "scalar_tensor"))


def find(migration: Migration) -> Iterator[Site]:
    """Numbers of parameters and gradients that are added to a plain tensor in place."""
    for view in migration.views():
        for node in view.nodes(ast.AugAssign):
            if type(node.op) not in _OPERATORS or not any(
                isinstance(v, Opaque) and v.name in _PLAIN for v in view.values(node.target)
            ):
                continue
            group, values = tensor_values(migration, view, node.value)
            if group is not None and runs_on_shards(migration, view, node, group):
                yield Site(view, node, _SYMBOL, "hazard", group, values)


def check(site: Site, migration: Migration) -> Outcome:
    view, node = site.view, site.node
    assert isinstance(node, ast.AugAssign)
    target = view.text(node.target)
    what = f"{target} is a plain tensor, which takes nothing of a DTensor in place: the statement would raise"
    if not isinstance(node.target, ast.Name) or site.group is None or "FSDP1" in site.group.kinds:
        return Outcome(Level.MANUAL, what, f"Write {target} = {target} {_OPERATORS[type(node.op)]} …, with the number whole.")
    outcome = Outcome(
        Level.REVIEW,
        f"{what}; it is written as a sum of its own, which makes {target} a DTensor",
        f"What reads {target} behind it takes .full_tensor() first; other names of the same tensor no longer see the sum.",
    )
    simple = isinstance(node.value, (ast.Name, ast.Attribute, ast.Call, ast.Subscript, ast.BinOp))
    simple = simple and not (isinstance(node.value, ast.BinOp) and isinstance(node.value.op, (ast.Add, ast.Sub, *_LOOSE)))
    value = [view.keep(node.value)] if simple else ["(", view.keep(node.value), ")"]
    written = [f"{target} = {target} {_OPERATORS[type(node.op)]} ", *value]
    outcome.patches.append(view.replace(node, written, "a plain tensor takes nothing of a DTensor in place"))
    return outcome


_LOOSE = (ast.Mult, ast.Div, ast.BitOr, ast.BitAnd, ast.BitXor, ast.Mod, ast.FloorDiv, ast.LShift, ast.RShift, ast.MatMult)

_DDP = """\
import torch
from torch.nn.parallel import DistributedDataParallel as DDP

model = DDP(build())
model(batch()).sum().backward()
total = torch.zeros(())
for p in model.parameters():
    total += p.grad.norm() ** 2
print(total.sqrt().item())
"""
_FSDP2 = """\
import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

model = build()
for tensor in [*model.parameters(), *model.buffers()]:
    dist.broadcast(tensor.detach(), src=0)
fully_shard(model)
model(batch()).sum().backward()
total = torch.zeros(())
for p in model.parameters():
    total = total + p.grad.norm() ** 2
print((total.full_tensor() if isinstance(total, DTensor) else total).sqrt().item())
"""

RULE = Rule(
    id="FS709",
    title="Sums that begin with a plain tensor",
    why=(
        "A DTensor added to a plain tensor of one element gives a DTensor, but not in place: total += p.grad.norm() raises "
        "an AssertionError without a word where total began as torch.zeros(())."
    ),
    symbols=(_SYMBOL,),
    roles=("hazard",),
    check=check,
    find=find,
    sources=("torch/distributed/tensor/_dispatch.py, measured on torch 2.13, two ranks",),
    examples=(Example(_DDP, _FSDP2, Level.REVIEW),),
)
