"""``generate`` under ``summon_full_params``: what it computes itself, besides calling the model, needs whole parameters."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from ..analysis.values import FunctionValue, Instance, Wrapped
from ..groups import Group
from ..migration import Migration
from ..state.summoned import models_of
from ..view import FileView
from .forward_methods import computes

METHOD = "generate"


def generating_calls(migration: Migration, group: Group | None) -> list[tuple[FileView, ast.Call]]:
    """The calls on a summoned model of a group that compute with its parameters, or whose code is not seen."""
    if group is None or "FSDP1" not in group.kinds:
        return []
    return migration.once("generating", group, lambda: list(_find(migration, group)))


def surely_generates(migration: Migration, group: Group) -> bool:
    """Whether every model of a group has the method, as far as the calls show."""
    values = [value for view, call in generating_calls(migration, group) for value in view.values(_receiver(call))]
    return len(group.wraps) == 1 and all(isinstance(value, (Wrapped, Instance)) for value in values)


def _receiver(call: ast.Call) -> ast.expr:
    assert isinstance(call.func, ast.Attribute)
    return call.func.value


def _find(migration: Migration, group: Group) -> Iterator[tuple[FileView, ast.Call]]:
    for site in migration.sites_of(group):
        block = site.view.statement(site.node) if site.member == "summon_full_params" else None
        if not isinstance(block, ast.With):
            continue
        models = models_of(block)
        for call in (node for statement in block.body for node in ast.walk(statement) if isinstance(node, ast.Call)):
            if not isinstance(call.func, ast.Attribute) or call.func.attr != METHOD or ast.dump(call.func.value) not in models:
                continue
            methods = _methods(migration, group)
            if not methods or any(computes(migration, method) for method in methods):
                yield site.view, call


def _methods(migration: Migration, group: Group) -> list[FunctionValue]:
    """The method of every model of a group; none where one is of a class that is not seen."""
    flow = migration.program.flow
    found: list[FunctionValue] = []
    for model in group.raw:
        owners = flow.ancestors(model.cls) if isinstance(model, Instance) else []
        owner = next((cls for cls in owners if METHOD in flow.files[cls.file].classes[cls.index].members), None)
        if owner is None:
            return []
        variable = flow.files[owner.file].classes[owner.index].members[METHOD] + flow.variable_offsets[owner.file]
        found += [value for value in flow.values_of(variable) if isinstance(value, FunctionValue)]
    return found
