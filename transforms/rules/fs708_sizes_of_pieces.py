"""Sizes of parameters behind FSDP1, which are those of this rank's pieces."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from ..findings import Level
from ..migration import Migration
from ..rule import Example, Outcome, Rule
from ..sites import Site
from ..training.local_reads import runs_behind_the_wrap, tensor_values
from ..view import FileView

_SYMBOL = "torch.Tensor.size_of_piece"
_SIZES = frozenset({"numel", "nelement", "size"})


def find(migration: Migration) -> Iterator[Site]:
    """``p.numel()``, ``p.shape[0]`` and the like of parameters and gradients of an FSDP1 model."""
    for view in migration.views():
        for node in view.nodes(ast.Call, ast.Subscript):
            tensor = _of_what(node)
            if tensor is None or _is_tested(view, node):
                continue
            group, values = tensor_values(migration, view, tensor)
            if group is not None and "FSDP1" in group.kinds and runs_behind_the_wrap(migration, view, node, group):
                yield Site(view, node, _SYMBOL, "hazard", group, values)


def _of_what(node: ast.Call | ast.Subscript) -> ast.expr | None:
    """The tensor whose size an expression is."""
    if isinstance(node, ast.Call):
        return node.func.value if isinstance(node.func, ast.Attribute) and node.func.attr in _SIZES else None
    shape = node.value
    return shape.value if isinstance(shape, ast.Attribute) and shape.attr == "shape" else None


def _is_tested(view: FileView, node: ast.AST) -> bool:
    """Whether a size is only asked to be some or none: empty pieces are left out, and no whole parameter is empty."""
    parent = view.parents[node]
    if isinstance(parent, ast.Compare):
        return all(isinstance(other, ast.Constant) and other.value == 0 for other in parent.comparators)
    asked = parent.ifs if isinstance(parent, ast.comprehension) else [getattr(parent, "test", None)]
    return node in asked


def check(site: Site, migration: Migration) -> Outcome:
    return Outcome(
        Level.REVIEW,
        f"{site.view.text(site.node)} was the size of this rank's piece behind FSDP1, and is that of the whole parameter with "
        "FSDP2: counts are those of the model, and what is computed from them changes",
        "A count that is summed over the ranks (all_reduce, times the world size) counts everything several times now.",
    )


_BEFORE = """\
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

model = FSDP(build(), use_orig_params=True)
optimizer = torch.optim.AdamW([{"params": [p], "lr": 0.1 / p.shape[0]} for p in model.parameters()])
"""
_AFTER = """\
import torch
from torch.distributed.fsdp import fully_shard

model = build()
fully_shard(model)
optimizer = torch.optim.AdamW([{"params": [p], "lr": 0.1 / p.shape[0]} for p in model.parameters()])
"""

RULE = Rule(
    id="FS708",
    title="Sizes of FSDP1's pieces of parameters",
    why=(
        "Behind FSDP1 numel() and shape are those of a rank's flat piece: two ranks counted 21232 each of 42464 parameters. A "
        "DTensor has the size of the whole. Learning rates by width or by the number of parameters change, without an error."
    ),
    symbols=(_SYMBOL,),
    roles=("hazard",),
    check=check,
    find=find,
    sources=("numel() and shape of parameters of FSDP1 and FSDP2 models on torch 2.13, two ranks",),
    examples=(Example(_BEFORE, _AFTER, Level.REVIEW),),
)
