"""Tensors made after a model's parameter, ``next(model.parameters()).new_zeros(…)``: DTensors where that is sharded."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from ..analysis.values import ClassValue, Derived
from ..groups import Group
from ..migration import Migration
from ..view import FileView
from .forward_methods import is_made_like_a_parameter
from .local_reads import runs_on_shards


def made_like_shards(migration: Migration) -> Iterator[tuple[FileView, ast.Call, Group]]:
    """Such calls where the parameter is sharded: outside of models, and in methods that FSDP1's model is called by."""
    for view in migration.views():
        for node in view.nodes(ast.Call):
            if not isinstance(node.func, ast.Attribute) or not is_made_like_a_parameter(view, node):
                continue
            if not _is_next(view, node.func.value):
                continue
            group = migration.groups.of_tensors(tuple(v for v in view.values(node.func.value) if isinstance(v, Derived)))
            if group is None or not runs_on_shards(migration, view, node, group):
                continue
            if not _is_in_a_module(view, node) or ("FSDP1" in group.kinds and _is_called_from_outside(migration, view, node)):
                yield view, node, group


def _is_next(view: FileView, node: ast.expr) -> bool:
    """``next(model.parameters())``, or a name that the function around binds to that."""
    if isinstance(node, ast.Name):
        scope = view.function(node) or view.tree
        bound = [
            statement.value
            for statement in ast.walk(scope)
            if isinstance(statement, ast.Assign)
            and any(isinstance(target, ast.Name) and target.id == node.id for target in statement.targets)
        ]
        return bool(bound) and all(not isinstance(value, ast.Name) and _is_next(view, value) for value in bound)
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "next"


def _is_called_from_outside(migration: Migration, view: FileView, node: ast.AST) -> bool:
    """Whether the method around a place is called by code that is no model's."""
    function = view.function(node)
    callers = migration.program.callers(view, function) if function is not None else []
    return any(not _is_in_a_module(at, call) for at, call in callers)


def _is_in_a_module(view: FileView, node: ast.AST) -> bool:
    owner = view.enclosing_class(node)
    classes = [value for value in view.values(owner) if isinstance(value, ClassValue)] if owner is not None else []
    return any(name.startswith("torch.nn.") for cls in classes for name in view.program.flow.external_bases(cls))
