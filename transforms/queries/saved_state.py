"""What a call of ``torch.save`` and its kin writes: the state dicts of sharded models, and of their optimizers."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from ..flow.values import Container, Derived, Opaque, Optimizer, Value
from .file import File
from .saved_models import SAVES
from .sharded_models import ShardCalls, ShardedModels, known_values

__all__ = ["SAVES", "saved_shards", "saved_values", "state_of_shards"]
_DEEPEST = 4


def saved_values(models: ShardedModels, file: File, node: ast.expr) -> Iterator[Value]:
    """What is written, and what is held in it."""
    yield from _held(models, known_values(file, node), 0)


def _held(models: ShardedModels, values: list[Value], depth: int) -> Iterator[Value]:
    for value in values:
        yield value
        if isinstance(value, Container) and depth < _DEEPEST:
            yield from _held(models, list(models.elements(value)), depth + 1)


def saved_shards(models: ShardedModels, file: File, node: ast.expr) -> tuple[str, ShardCalls] | None:
    """What of the shards of a model is surely written (``model``, ``optimizer``), with the calls that shard it."""
    parts = [part for part in node.values if part is not None] if isinstance(node, ast.Dict) else [node]
    for part in parts:
        if isinstance(part, ast.Call) and isinstance(part.func, ast.Attribute) and part.func.attr == "state_dict":
            if calls := models.of(file, part.func.value):
                return "model", calls
    if calls := models.of_owners(file, node, ("state_dict",)):
        return "model", calls
    return _shards_among(models, known_values(file, node), 0)


def _shards_among(models: ShardedModels, values: list[Value], depth: int) -> tuple[str, ShardCalls] | None:
    found = [state_of_shards(models, value) for value in values]
    if found and all(found):
        return found[0]
    if depth < _DEEPEST and values and all(isinstance(value, Container) for value in values):
        for value in values:
            for held in models.entries(value):  # type: ignore[arg-type]
                if (inner := _shards_among(models, held, depth + 1)) is not None:
                    return inner
    return None


def state_of_shards(models: ShardedModels, value: Value) -> tuple[str, ShardCalls] | None:
    """Whether a value is the state dict of a sharded model, or of an optimizer over one."""
    if isinstance(value, Derived) and value.kind == "state_dict":
        calls = models.of_derived([value])
        return ("model", calls) if calls else None
    if isinstance(value, Derived) and value.kind == "optimizer_state" and isinstance(value.owner, Optimizer):
        calls = models.of_optimizer(value.owner)
        return ("optimizer", calls) if calls else None
    return None


def is_gathered_by_hand(file: File, node: ast.AST) -> bool:
    """Whether the function around a place makes whole tensors of shards itself."""
    scope = file.function(node) or file.tree
    found = [n for n in ast.walk(scope) if isinstance(n, (ast.Attribute, ast.Name))]
    names = {n.attr if isinstance(n, ast.Attribute) else n.id for n in found}
    return any("full_tensor" in name or "gather" in name or name in ("redistribute", "to_local", "whole") for name in names)


def made_by(models: ShardedModels, file: File, node: ast.expr, names: frozenset[str]) -> Iterator[tuple[File, ast.Call]]:
    """The calls of these symbols that made what is written."""
    for value in saved_values(models, file, node):
        if isinstance(value, Opaque) and value.name in names and value.site >= 0:
            yield models.program.call_node(value.site)
