"""Embeddings with sparse gradients: DDP reduces them, FSDP2 does not."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from ..analysis.values import Instance
from ..findings import Level
from ..groups import Group
from ..migration import Migration
from ..rule import Example, Outcome, Rule
from ..sharding.model_code import classes_of
from ..sites import Site
from ..training.passes import outside_name
from ..view import FileView

_SYMBOL = "torch.nn.Embedding.sparse"
_LAYERS = frozenset({"torch.nn.Embedding", "torch.nn.EmbeddingBag"})


def find(migration: Migration) -> Iterator[Site]:
    """Layers with ``sparse=True`` in models that DDP wraps."""
    for group in migration.groups.all:
        if group.stays_ddp or "DDP" not in group.kinds:
            continue
        known: set[ast.AST] = set()
        for view, node in _code_of(migration, group):
            for call in ast.walk(node):
                if isinstance(call, ast.Call) and call not in known and _is_sparse(view, call):
                    known.add(call)
                    yield Site(view, call, _SYMBOL, "hazard", group)


def _code_of(migration: Migration, group: Group) -> Iterator[tuple[FileView, ast.AST]]:
    """The classes of a group's models, and the expressions that are wrapped themselves."""
    for wrap in group.wraps:
        yield wrap.view, wrap.node
    for value in sorted((v for v in group.raw if isinstance(v, Instance)), key=lambda v: (v.cls.file, v.cls.index, v.site)):
        yield from classes_of(migration, value.cls)


def _is_sparse(view: FileView, call: ast.Call) -> bool:
    asked = any(keyword.arg == "sparse" and _may_hold(keyword.value) for keyword in call.keywords)
    return asked and outside_name(view, call.func) in _LAYERS


def _may_hold(node: ast.expr) -> bool:
    return not isinstance(node, ast.Constant) or bool(node.value)


def check(site: Site, migration: Migration) -> Outcome:
    return Outcome(
        Level.MANUAL,
        "this layer makes sparse gradients, which FSDP2 cannot reduce: the first backward of a sharded model raises",
        "Leave out sparse=True and give the layer's parameters to the optimizer of the others (SparseAdam takes sparse "
        "gradients alone), or let the model stay under DDP.",
        holds=True,
    )


_BEFORE = """\
import torch
from torch.nn.parallel import DistributedDataParallel as DDP


class Recommender(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.items = torch.nn.EmbeddingBag(1000, 16, sparse=True)
        self.head = torch.nn.Linear(16, 1)

    def forward(self, items):
        return self.head(self.items(items))


model = DDP(Recommender())
"""

RULE = Rule(
    id="FS125",
    title="Sparse gradients",
    why="DDP reduces sparse gradients of embeddings. FSDP2 copies gradients into one dense buffer, which takes no sparse ones.",
    symbols=(_SYMBOL,),
    roles=("hazard",),
    check=check,
    find=find,
    sources=("measured on torch 2.13, two ranks",),
    examples=(Example(_BEFORE, _BEFORE, Level.MANUAL),),
)
