"""Attributes that code sets on a wrapped model, under names that the model itself reads."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator

from ..analysis.values import Instance, Wrapped
from ..findings import Level
from ..migration import Migration
from ..rule import Example, Outcome, Rule
from ..sharding.model_code import class_node
from ..sites import Site
from ..view import FileView

_SYMBOL = "torch.nn.Module.set_on_wrapper"
_OF_WRAPPERS = frozenset({"module", "training", "require_backward_grad_sync", "require_forward_param_sync"})
"""What the wrappers have themselves; other rules answer for it."""


def find(migration: Migration) -> Iterator[Site]:
    """``model.temperature = 0.5`` on a wrapper, where the class of the model inside reads ``self.temperature``."""
    for view in migration.views():
        for node in view.nodes(ast.Attribute):
            if not isinstance(node.ctx, ast.Store) or node.attr in _OF_WRAPPERS:
                continue
            values = tuple(view.values(node.value))
            group = migration.groups.of(values) if any(isinstance(v, Wrapped) for v in values) else None
            if group is None or group.stays_ddp:
                continue
            if _reader(migration, node.attr, (v for v in values if isinstance(v, Wrapped))) is not None:
                yield Site(view, node, _SYMBOL, "hazard", group, values)


def _reader(migration: Migration, name: str, wrapped: Iterable[Wrapped]) -> tuple[FileView, ast.Attribute] | None:
    """Where a method of a wrapped model's class reads an attribute of its own."""
    for wrap in wrapped:
        for model in migration.groups.models(migration.program.attribute(wrap, "module")):
            classes = migration.program.flow.ancestors(model.cls) if isinstance(model, Instance) else []
            for cls in classes:
                code = class_node(migration, cls)
                read = _read_in(code[1], name) if code is not None else None
                if code is not None and read is not None:
                    return code[0], read
    return None


def _read_in(owner: ast.ClassDef, name: str) -> ast.Attribute | None:
    for node in ast.walk(owner):
        if isinstance(node, ast.Attribute) and node.attr == name and isinstance(node.ctx, ast.Load):
            if isinstance(node.value, ast.Name) and node.value.id == "self":
                return node
    return None


def check(site: Site, migration: Migration) -> Outcome:
    view, node, group = site.view, site.node, site.group
    assert isinstance(node, ast.Attribute) and group is not None
    found = _reader(migration, node.attr, (v for v in site.values if isinstance(v, Wrapped)))
    assert found is not None
    wrapper = " and ".join(sorted(group.kinds))
    return Outcome(
        Level.REVIEW,
        f"{view.text(node)} was set on {wrapper}'s wrapper, and the model, which reads its own in {found[0].path}:"
        f"{found[1].lineno}, never saw it; a sharded model is one object, and goes by what is set here",
        "Usually that is what was meant all along. To train exactly as before, remove the assignment or rename the attribute.",
    )


_BEFORE = """\
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


class Classifier(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(8, 2)
        self.temperature = 1.0

    def forward(self, x):
        return self.layer(x) / self.temperature


model = FSDP(Classifier())
for epoch in range(3):
    model.temperature = 0.9**epoch
    train(model)
"""
_AFTER = _BEFORE.replace("FullyShardedDataParallel as FSDP", "fully_shard").replace(
    "model = FSDP(Classifier())", "model = Classifier()\nfully_shard(model)"
)

RULE = Rule(
    id="FS620",
    title="Attributes set on the wrapper that the model reads",
    why=(
        "model.temperature = 0.5 on a wrapper makes an attribute of the wrapper: the module inside keeps its own, and "
        "forward reads that. fully_shard makes no wrapper, so the same line changes what forward computes, without an error."
    ),
    symbols=(_SYMBOL,),
    roles=("hazard",),
    check=check,
    find=find,
    sources=("an attribute set on FSDP1's wrapper and on an FSDP2 model, losses compared on torch 2.13",),
    examples=(Example(_BEFORE, _AFTER, Level.REVIEW),),
)
