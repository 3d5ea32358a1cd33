"""Loops that wrap one entry of a table or list after another, whose code is not seen."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from ..analysis.values import Instance, Opaque
from ..findings import Level
from ..view import FileView

if TYPE_CHECKING:
    from .data_parallel import DataParallel

_VIEWS = frozenset({"items", "values", "children", "named_children"})


def collections_of(view: FileView, call: ast.Call, model: ast.expr) -> list[ast.expr]:
    """What the loops around a wrap go through, of which it wraps what comes."""
    names = {inner.id for inner in ast.walk(model) if isinstance(inner, ast.Name)}
    found: list[ast.expr] = []
    for ancestor in view.ancestors(call):
        if isinstance(ancestor, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
            break
        loops = getattr(ancestor, "generators", []) if not isinstance(ancestor, (ast.For, ast.AsyncFor)) else [ancestor]
        for loop in loops:
            if any(isinstance(inner, ast.Name) and inner.id in names for inner in ast.walk(loop.target)):
                found.append(_collection(loop.iter))
    return found


def _collection(iterated: ast.expr) -> ast.expr:
    """``table`` of ``table.items()``."""
    called = iterated.func if isinstance(iterated, ast.Call) else None
    return called.value if isinstance(called, ast.Attribute) and called.attr in _VIEWS else iterated


def entries_are_unseen(ddp: DataParallel) -> bool:
    """Whether a wrap takes one unseen entry after another, so that some may hold others."""
    assert ddp.plan.model is not None
    if not collections_of(ddp.view, ddp.call, ddp.plan.model):
        return False
    models = ddp.models
    return not models or any(not isinstance(model, (Instance, Opaque)) for model in models)


def name_entries(ddp: DataParallel) -> None:
    """Says what fully_shard refuses of the entries that DDP took."""
    if not entries_are_unseen(ddp):
        return
    ddp.level = Level.REVIEW
    ddp.notes.append(
        "what an earlier turn of the loop has sharded stays sharded: where one entry holds another, or is a ModuleList or "
        "ModuleDict, which have no forward, it raises; DDP took both; what else holds an entry and calls methods of it other "
        "than forward, as model.decode(x), meets sharded parameters, which layers refuse: register such methods behind "
        "fully_shard (register_fsdp_forward_method)"
    )
