"""Parameters that the model itself writes while it runs forward: ``self.temperature.clamp_(…)``."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import TypeGuard

from ..analysis.library import PARAMETER
from ..analysis.values import Derived, Instance
from ..findings import Level
from ..groups import Group
from ..migration import Migration
from ..rule import Example, Outcome, Rule
from ..sharding.model_code import class_node, classes_of
from ..sites import Site
from ..training.passes import outside_name
from ..view import FileView

_SYMBOL = "torch.Tensor.written_in_forward"
_MAYBE = "torch.Tensor.written_in_forward_of_unseen"
_ADVICE = (
    "Write into the parameter between the steps, where it is a DTensor (with torch.no_grad(): model.temperature.clamp_(…) "
    "behind optimizer.step()), or before the model is sharded, and let forward only read it."
)
_OF_LAYERS = frozenset({"weight", "bias"})
_WRITES_NOTHING = frozenset({"requires_grad_", "retain_grad", "share_memory_", "detach_"})


def find(migration: Migration) -> Iterator[Site]:
    """Writes into parameters in forward, or in what it calls, of models that DDP wraps or may wrap."""
    known: set[ast.AST] = set()
    unseen: list[Group] = []
    for group in migration.groups.all:
        if group.stays_ddp or "DDP" not in group.kinds:
            continue
        models = [value for value in group.raw if isinstance(value, Instance)]
        if len(models) < len(group.raw) or not models:
            unseen.append(group)
        for value in sorted(models, key=lambda v: (v.cls.file, v.cls.index, v.site)):
            for view, owner in classes_of(migration, value.cls):
                for at, node in _writes(migration, view, owner):
                    if node not in known:
                        known.add(node)
                        yield Site(at, node, _SYMBOL, "hazard", group)
    if unseen:
        for at, node in _written_by_unseen(migration):
            if node not in known:
                known.add(node)
                yield Site(at, node, _MAYBE, "hazard", unseen[0])


def _written_by_unseen(migration: Migration) -> Iterator[tuple[FileView, ast.expr]]:
    """Such writes in models that nothing is seen to build: a registry may, for a wrap that takes what it is given."""
    flow = migration.program.flow
    for cls, built in flow.instances.items():
        if all(value.site < 0 for value in built) and any(name.startswith("torch.nn.") for name in flow.external_bases(cls)):
            owner = class_node(migration, cls)
            if owner is not None:
                yield from _writes(migration, *owner)


def _writes(migration: Migration, view: FileView, owner: ast.ClassDef) -> Iterator[tuple[FileView, ast.expr]]:
    names = _parameters(view, owner)
    for at, function in _run_by_forward(migration, view, owner):
        own = names if at.enclosing_class(function) is owner else set[str]()
        for node in ast.walk(function):
            written = _written(node)
            if written is not None and (_is_parameter(written, own) or _holds_parameters(at, written)):
                yield at, written


def _parameters(view: FileView, owner: ast.ClassDef) -> set[str]:
    """The attributes of ``self`` that a class makes parameters."""
    return {
        target.attr
        for node in ast.walk(owner)
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call)
        if outside_name(view, node.value.func) in PARAMETER
        for target in node.targets
        if isinstance(target, ast.Attribute) and isinstance(target.value, ast.Name) and target.value.id == "self"
    }


def _run_by_forward(migration: Migration, view: FileView, owner: ast.ClassDef) -> list[tuple[FileView, ast.AST]]:
    """``forward``, the methods of the class and the functions of the repository that it calls, at any depth."""
    methods = {node.name: node for node in owner.body if isinstance(node, ast.FunctionDef)}
    pending: list[tuple[FileView, ast.AST]] = [(view, methods["forward"])] if "forward" in methods else []
    found: dict[ast.AST, FileView] = {}
    while pending:
        at, function = pending.pop()
        if function in found:
            continue
        found[function] = at
        for node in ast.walk(function):
            if isinstance(node, ast.Call):
                if at is view and _is_own(node.func) and node.func.attr in methods:
                    pending.append((view, methods[node.func.attr]))
                pending.extend(migration.program.function_node(callee) for callee in migration.program.callees(at, node))
    return [(at, function) for function, at in found.items()]


def _is_own(function: ast.expr) -> TypeGuard[ast.Attribute]:
    """``self.method``."""
    return isinstance(function, ast.Attribute) and isinstance(function.value, ast.Name) and function.value.id == "self"


def _holds_parameters(view: FileView, node: ast.expr) -> bool:
    """Whether a name stands for parameters: of a momentum encoder that a loop goes through, say."""
    if isinstance(node, ast.Attribute) and node.attr == "data":
        node = node.value
    if not isinstance(node, ast.Name) or not any(isinstance(v, Derived) and v.kind == "parameters" for v in view.values(node)):
        return False
    scope = view.function(node) or view.tree
    return all(_stands_for_itself(view, store) for store in ast.walk(scope) if _is_store(store, node.id))


def _is_store(node: ast.AST, name: str) -> TypeGuard[ast.Name]:
    return isinstance(node, ast.Name) and node.id == name and isinstance(node.ctx, ast.Store)


def _stands_for_itself(view: FileView, store: ast.Name) -> bool:
    """Whether a name is bound by a loop, or to an attribute or element: what is computed is a tensor of its own."""
    statement = view.statement(store)
    if not isinstance(statement, (ast.Assign, ast.AnnAssign)):
        return isinstance(statement, (ast.For, ast.AsyncFor))
    return isinstance(statement.value, (ast.Name, ast.Attribute, ast.Subscript))


def _written(node: ast.AST) -> ast.expr | None:
    """The tensor that a node writes into: by a method in place, or by an assignment to its data or its elements."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        name = node.func.attr
        in_place = name.endswith("_") and not name.startswith("_") and not name.endswith("__")
        return node.func.value if in_place and name not in _WRITES_NOTHING else None
    if isinstance(node, (ast.Attribute, ast.Subscript)) and isinstance(node.ctx, ast.Store):
        if isinstance(node, ast.Subscript) or node.attr == "data":
            return node.value
    return None


def _is_parameter(node: ast.expr, names: set[str]) -> bool:
    """``self.scale``, ``self.scale.data``, ``self.layer.weight``."""
    if isinstance(node, ast.Attribute) and node.attr == "data":
        node = node.value
    if not isinstance(node, ast.Attribute):
        return False
    if isinstance(node.value, ast.Name):
        return node.value.id == "self" and node.attr in names
    root: ast.expr = node.value
    while isinstance(root, (ast.Attribute, ast.Subscript)):
        root = root.value
    return node.attr in _OF_LAYERS and isinstance(root, ast.Name) and root.id == "self"


def check(site: Site, migration: Migration) -> Outcome:
    assert isinstance(site.node, ast.expr)
    if site.symbol == _MAYBE:
        return Outcome(
            Level.REVIEW,
            f"{site.view.text(site.node)} is written while forward runs; where DDP wrapped a model of this class, and now "
            "fully_shard takes it, what is written goes into a gathered copy and is lost, and nothing raises",
            _ADVICE,
        )
    return Outcome(
        Level.MANUAL,
        f"{site.view.text(site.node)} is written while forward runs, where FSDP2 shows the model a gathered copy: what is "
        "written is lost when the copy goes, and nothing raises",
        _ADVICE,
        holds=True,
    )


_BEFORE = """\
import torch
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(8, 8)
        self.temperature = nn.Parameter(torch.full((1,), 0.07))

    def forward(self, x):
        with torch.no_grad():
            self.temperature.clamp_(0.001, 0.5)
        return self.layer(x) / self.temperature


torch.cuda.set_device(local_rank)
model = DDP(Net().to(device), device_ids=[local_rank])
"""

RULE = Rule(
    id="FS706",
    title="Parameters written in forward",
    why=(
        "Under DDP forward sees the parameter itself. Under FSDP2 it sees the gathered tensor, and the optimizer goes on "
        "from the shards: a temperature that forward clamps drifts past its bound. Measured with a clamp in forward, "
        "losses of the fourth step were 6338.4 and 6302.6, without an error."
    ),
    symbols=(_SYMBOL, _MAYBE),
    roles=("hazard",),
    check=check,
    find=find,
    sources=("measured on torch 2.13, two ranks",),
    examples=(Example(_BEFORE, _BEFORE, Level.MANUAL),),
)
