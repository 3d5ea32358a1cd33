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
        for node in view.nodes(ast.Attribute, ast.Call):
            model, name = _set(view, node)
            values = tuple(view.values(model)) if model is not None and name not in _OF_WRAPPERS else ()
            group = migration.groups.of(values) if any(isinstance(v, Wrapped) for v in values) else None
            if group is None or group.stays_ddp:
                continue
            wrapped = [value for value in values if isinstance(value, Wrapped)]
            if len(wrapped) == len(values) if name is None else _reader(migration, name, wrapped) is not None:
                yield Site(view, node, _SYMBOL, "hazard", group, values)


def _set(view: FileView, node: ast.Attribute | ast.Call) -> tuple[ast.expr | None, str | None]:
    """What an attribute is set on, and its name; None for a name that is computed."""
    if isinstance(node, ast.Attribute):
        return (node.value if isinstance(node.ctx, ast.Store) else None), node.attr
    if view.external(node.func) != "builtins.setattr" or len(node.args) != 3:
        return None, None
    name = node.args[1]
    return node.args[0], name.value if isinstance(name, ast.Constant) and isinstance(name.value, str) else None


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
    assert isinstance(node, (ast.Attribute, ast.Call)) and group is not None
    name = _set(view, node)[1]
    wrapper = " and ".join(sorted(group.kinds))
    if name is None:
        reads = "the model, which keeps its own attributes, never saw it"
    else:
        found = _reader(migration, name, (v for v in site.values if isinstance(v, Wrapped)))
        assert found is not None
        reads = f"the model, which reads its own in {found[0].path}:{found[1].lineno}, never saw it"
    return Outcome(
        Level.REVIEW,
        f"{view.text(node)} set an attribute of {wrapper}'s wrapper, and {reads}; a sharded model is one object, and goes by "
        "what is set here",
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
