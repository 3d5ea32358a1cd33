"""What ran last before a place: a forward of a model, whose units may then show whole parameters, or a backward.

After a backward every unit is back to its shards. After a forward the units that stay gathered (the root, by default)
show plain parameters until a backward or ``reshard()``; the sharded parameters have the gradients.
"""

from __future__ import annotations

import ast

from ..analysis.values import Optimizer, Value
from ..groups import Group
from ..migration import Migration
from ..program import owner_of
from ..view import FileView
from .passes import BACKWARD, FORWARD, passes_in

_DEEPEST = 4


def follows_a_forward(
    migration: Migration, view: FileView, node: ast.AST, group: Group, values: tuple[Value, ...] = ()
) -> bool:
    """Whether a place is reached, on some way, behind a forward of the group's model with no backward between.

    ``values`` are those that the place deals with: of a group of several models, only these count.
    """
    return FORWARD in _last_pass(migration, view, node, _part(migration, group, values), 0)


def runs_behind_another_forward(
    migration: Migration, view: FileView, node: ast.AST, group: Group, values: tuple[Value, ...]
) -> bool:
    """Whether a place that deals with gradients comes behind a backward, and another forward of the model behind that."""
    part = _part(migration, group, values)
    statement, function = view.statement(node), view.function(node)
    for _ in range(_DEEPEST):
        block, place = view.block_of(statement)
        kinds = [passes_in(migration, view, [earlier], part) for earlier in block[:place]]
        last = next((number for number in reversed(range(place)) if kinds[number]), None)
        if last is not None:
            if _of_statements(migration, view, block[: last + 1], part) != {FORWARD}:
                return False
            return any(BACKWARD in kind for kind in kinds)
        parent = view.parents[statement]
        if parent is function or not isinstance(parent, (ast.If, ast.With, ast.Try)):
            break
        statement = parent
    callers = migration.program.callers(view, function) if function is not None else []
    return bool(callers) and any(
        _is_lone_step(migration, view, function) and runs_behind_another_forward(migration, caller, call, group, values)
        for caller, call in callers
        if caller.function(call) is not function
    )


def _is_lone_step(migration: Migration, view: FileView, function: ast.AST | None) -> bool:
    """Whether a function runs neither a forward nor a backward itself."""
    return function is not None and not passes_in(migration, view, getattr(function, "body", []), None)


def _part(migration: Migration, group: Group, values: tuple[Value, ...]) -> Group:
    """The models among the values, with their optimizers: a student and its teacher may be of one group."""
    models = {owner_of(value) for value in values}
    wraps = [wrap for wrap in group.wraps if wrap.value in models]
    if not wraps or len(wraps) == len(group.wraps):
        return group
    others = {wrap.value for wrap in group.wraps} - models
    optimizers = [optimizer for optimizer in group.optimizers if not _trained(migration, optimizer) <= others]
    return Group(group.name, wraps, group.raw, optimizers)


def _trained(migration: Migration, optimizer: Optimizer) -> set[Value]:
    """What the parameters of an optimizer belong to."""
    return {owner_of(value) for value in migration.program.elements(list(migration.program.attribute(optimizer, "params")))}


def _last_pass(migration: Migration, view: FileView, node: ast.AST, group: Group, depth: int) -> set[str]:
    """The passes that may have run last before a place; empty where none is seen."""
    function = view.function(node)
    statement = view.statement(node)
    found: set[str] = set()
    while True:
        block, place = view.block_of(statement)
        last = _of_statements(migration, view, block[:place], group)
        if last:
            return found | last
        parent = view.parents[statement]
        if isinstance(parent, (ast.For, ast.AsyncFor, ast.While)):
            found |= _of_statements(migration, view, block[place + 1 :], group)  # the round before
        if parent is function or not isinstance(parent, (ast.stmt, ast.ExceptHandler)):
            break
        statement = view.statement(parent)
    if function is not None and not isinstance(function, ast.Lambda) and depth < _DEEPEST:
        for caller, call in migration.program.callers(view, function):
            found |= _last_pass(migration, caller, call, group, depth + 1)
    return found


def _of_statements(migration: Migration, view: FileView, statements: list[ast.stmt], group: Group) -> set[str]:
    """What the last of these statements with a pass runs last, as far as it is seen."""
    for statement in reversed(statements):
        passes = passes_in(migration, view, [statement], group)
        if _is_never_trained(migration, group):
            passes -= {BACKWARD}
        if passes == {FORWARD}:
            return {FORWARD}
        if passes:
            return {_last_inside(migration, view, statement, group)}
    return set()


def _is_never_trained(migration: Migration, group: Group) -> bool:
    """Whether the backward passes are those of other models: a teacher or target has no optimizer, others have."""
    return not group.optimizers and any(whole.optimizers for whole in migration.groups.all)


def _last_inside(migration: Migration, view: FileView, statement: ast.stmt, group: Group) -> str:
    """What a compound statement with a backward runs last."""
    body = [*getattr(statement, "body", []), *getattr(statement, "orelse", [])]
    inner = [s for s in body if isinstance(s, ast.stmt)]
    return FORWARD if inner and FORWARD in _of_statements(migration, view, inner, group) else BACKWARD
