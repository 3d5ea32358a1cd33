"""What is computed while a model runs forward: FSDP2 has made its parameters whole there, so it is no shard.

A parameter that the forward returns itself is a whole tensor as well until its module goes back to shards. Its memory
is gone then, and reading it ends the program: nothing that would pass unnoticed.
"""

from __future__ import annotations

import ast

from ..analysis import library
from ..analysis.flow import Flow
from ..analysis.values import ClassValue, Derived
from ..groups import Group
from ..migration import Migration
from ..view import FileView, FunctionNode
from .forward_methods import methods_of


def is_forward_result(migration: Migration, view: FileView, node: ast.expr, value: Derived, group: Group) -> bool:
    """Whether a tensor comes to a place out of what a group's models run forward, on every way that is seen."""
    flow = migration.program.flow
    tensors = {flow.ids.get(Derived(kind, value.owner), -1) for kind in library.TENSORS}
    origins = migration.once("origins", None, lambda: _origins(flow))
    pending = [view.variable(node)]
    seen: set[int] = set()
    came_through = False
    while pending:
        variable = pending.pop()
        if variable in seen:
            continue
        seen.add(variable)
        if _is_in_forward(migration, variable, group):
            came_through = True
            continue
        before = {origin for origin in origins.get(variable, ()) if not tensors.isdisjoint(flow.points_to[origin] or ())}
        before |= {flow.sources[variable, tensor] for tensor in tensors if (variable, tensor) in flow.sources}
        if not before:
            return False
        pending.extend(before)
    return came_through


def _origins(flow: Flow) -> dict[int, list[int]]:
    """The variables that flow into each variable, or that it is computed from."""
    origins: dict[int, list[int]] = {}
    for flows in (flow.copies, flow.computed_from):
        for origin, targets in flows.items():
            for target in targets:
                origins.setdefault(target, []).append(origin)
    return origins


def _is_in_forward(migration: Migration, variable: int, group: Group) -> bool:
    program = migration.program
    written = program.flow.variable_in_text(variable)
    file = program.file_of_variable(written)
    if file is None:
        return False
    line = program.files[file].lines[written - program.flow.variable_offsets[file]]
    view = program.view(file)
    functions = migration.once("functions_by_line", (file, line), lambda: _functions_at(view, line))
    return any(_runs_forward(migration, view, function, group, set()) for function in functions)


def _functions_at(view: FileView, line: int) -> list[FunctionNode]:
    functions = view.nodes(ast.FunctionDef, ast.AsyncFunctionDef)
    return [function for function in functions if function.lineno <= line <= (function.end_lineno or line)]


def _runs_forward(migration: Migration, view: FileView, function: FunctionNode, group: Group, asked: set[ast.AST]) -> bool:
    """Whether a function is a model's forward, a method registered as one, or called by such alone."""
    if function in asked:
        return True
    owner = view.parents[function]
    forward = {"forward", *methods_of(migration, group)}
    if isinstance(owner, ast.ClassDef) and getattr(function, "name", "") in forward:
        return migration.once("models_classes", (group, owner), lambda: _is_built_for(migration, view, owner, group))
    asked.add(function)
    callers = [(at, at.function(call)) for at, call in migration.program.callers(view, function)]
    return bool(callers) and all(
        caller is not None and _runs_forward(migration, at, caller, group, asked) for at, caller in callers
    )


def _is_built_for(migration: Migration, view: FileView, node: ast.ClassDef, group: Group) -> bool:
    """Whether a class, or one that inherits from it, is what models of a group are made of."""
    flow = migration.program.flow
    classes = [value for value in view.values(node) if isinstance(value, ClassValue)]
    heirs = [cls for cls in flow.instances if any(base in flow.ancestors(cls) for base in classes)]
    return any(migration.groups.of_tensors([instance]) is group for cls in heirs for instance in flow.instances[cls])
