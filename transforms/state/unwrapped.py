"""Models that were taken out of their wrapper before: their files have no prefix."""

from __future__ import annotations

import ast

from ..migration import Migration
from ..sharding.arguments_of_calls import argument_of
from ..view import FileView


def was_unwrapped(migration: Migration, view: FileView, receiver: ast.expr) -> bool:
    """Whether a receiver is, or a name is assigned somewhere, what ``.module`` or a function that takes it off gives.

    The wrapper that it may hold as far as values go is then not really held. A parameter is what every caller gives for it.
    """
    return _was_unwrapped_here(migration, view, receiver) or _was_unwrapped_by_callers(migration, view, receiver)


def _was_unwrapped_by_callers(migration: Migration, view: FileView, receiver: ast.expr) -> bool:
    function = view.function(receiver)
    if not isinstance(receiver, ast.Name) or not isinstance(function, ast.FunctionDef):
        return False
    given = [
        (caller, argument_of(caller, call, view, function, receiver.id))
        for caller, call in migration.program.callers(view, function)
    ]
    return bool(given) and all(
        argument is not None and _was_unwrapped_here(migration, caller, argument) for caller, argument in given
    )


def _was_unwrapped_here(migration: Migration, view: FileView, receiver: ast.expr) -> bool:
    scope = view.function(receiver) or view.tree
    given = [
        statement.value
        for statement in ast.walk(scope)
        if isinstance(statement, ast.Assign) and any(ast.dump(t) == _stored(receiver) for t in statement.targets)
    ]
    return any(_unwraps(migration, view, value) for value in (receiver, *given))


def _stored(receiver: ast.expr) -> str:
    return ast.dump(ast.Name(receiver.id, ast.Store())) if isinstance(receiver, ast.Name) else ""


def _unwraps(migration: Migration, view: FileView, value: ast.expr) -> bool:
    if _takes_module(value):
        return True
    calls = (node for node in ast.walk(value) if isinstance(node, ast.Call))
    callees = (callee for call in calls for callee in migration.program.callees(view, call))
    return any(_takes_module(migration.program.function_node(callee)[1]) for callee in callees)


def _takes_module(node: ast.AST) -> bool:
    """``.module``, or ``getattr(model, "module", model)``."""
    return any(
        (isinstance(inner, ast.Attribute) and inner.attr == "module")
        or (isinstance(inner, ast.Constant) and inner.value == "module")
        for inner in ast.walk(node)
    )
