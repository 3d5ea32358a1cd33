"""Gradients that DDP did not reduce and FSDP2 does: of parameters unfrozen later, and of forwards around the wrapper."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from ..findings import Level
from ..migration import Migration
from ..rule import Example, Outcome, Rule
from ..sites import Site
from ..training.local_reads import runs_on_shards, tensor_values
from ..view import FileView

_UNFROZEN = "torch.Tensor.requires_grad"
_AROUND = "torch.nn.parallel.DistributedDataParallel.module.__call__"


def find(migration: Migration) -> Iterator[Site]:
    """Parameters of a DDP model that are unfrozen behind the wrap, and calls of ``model.module(…)``."""
    for view in migration.views():
        for node in view.nodes(ast.Assign, ast.Call):
            tensor = _unfrozen(node)
            if tensor is not None:
                group, values = tensor_values(migration, view, tensor)
                if group is not None and "DDP" in group.kinds and runs_on_shards(migration, view, node, group):
                    yield Site(view, node, _UNFROZEN, "hazard", group, values)
            elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "module":
                values = tuple(view.values(node.func.value))
                group = migration.groups.of(values)
                if group is not None and "DDP" in group.kinds and not _without_gradients(view, node):
                    yield Site(view, node, _AROUND, "hazard", group, values, node)


def _unfrozen(node: ast.AST) -> ast.expr | None:
    """The tensor that a node gives gradients (again)."""
    if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant) and node.value.value is True:
        targets = [t for t in node.targets if isinstance(t, ast.Attribute) and t.attr == "requires_grad"]
        return targets[0].value if targets else None
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "requires_grad_":
        frozen = bool(node.args) and isinstance(node.args[0], ast.Constant) and node.args[0].value is False
        return None if frozen else node.func.value
    return None


def _without_gradients(view: FileView, node: ast.AST) -> bool:
    """Whether a place runs under ``no_grad`` or ``inference_mode``, as far as the text around it says so."""
    for ancestor in view.ancestors(node):
        headers: list[ast.expr] = []
        if isinstance(ancestor, ast.With):
            headers = [item.context_expr for item in ancestor.items]
        elif isinstance(ancestor, (ast.FunctionDef, ast.AsyncFunctionDef)):
            headers = ancestor.decorator_list
        if any("no_grad" in view.text(header) or "inference_mode" in view.text(header) for header in headers):
            return True
    return False


def check(site: Site, migration: Migration) -> Outcome:
    if site.symbol == _AROUND:
        return Outcome(
            Level.REVIEW,
            "DDP did not see a forward of model.module(…) and left its gradients on their rank; FSDP2 reduces them",
            "If the ranks were meant to keep them apart, call model.set_requires_gradient_sync(False) around its backward.",
        )
    return Outcome(
        Level.REVIEW,
        "DDP never reduced gradients of parameters that were frozen when it was built; FSDP2 reduces whatever has one",
        "Usually that is what was meant. To train as before, leave these parameters frozen.",
    )


_THAWED = """\
import torch
from torch.nn.parallel import DistributedDataParallel as DDP

model = DDP(torch.nn.Linear(2, 2))
for parameter in model.parameters():
    parameter.requires_grad = True
"""
_THAWED_AFTER = """\
import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard

model = torch.nn.Linear(2, 2)
for tensor in [*model.parameters(), *model.buffers()]:
    dist.broadcast(tensor.detach(), src=0)
fully_shard(model)
for parameter in model.parameters():
    parameter.requires_grad = True
"""

RULE = Rule(
    id="FS312",
    title="Gradients that DDP left alone",
    why=(
        "DDP reduces the gradients of the parameters that could have one when it was built, in backward passes of forwards "
        "that went through it. FSDP2 reduces every gradient of a sharded parameter. Where a program relied on the "
        "difference, often without knowing, its ranks drifted apart before and stay together now."
    ),
    symbols=(_UNFROZEN, _AROUND),
    roles=("hazard",),
    check=check,
    sources=("torch/nn/parallel/distributed.py: _build_params_for_reducer, forward",),
    examples=(Example(_THAWED, _THAWED_AFTER, Level.REVIEW),),
    find=find,
)
