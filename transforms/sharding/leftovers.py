"""Local variables that existed only for an argument that is gone."""

from __future__ import annotations

import ast

from ..text.patches import Patch
from ..view import FileView

_HARMLESS = frozenset(
    {
        "is_available",
        "current_device",
        "device_count",
        "get_rank",
        "get_world_size",
        "device",
        "getenv",
        "get",
    }
)
"""Functions whose calls may be left out: they only tell something."""


def without_leftovers(view: FileView, argument: ast.expr) -> list[Patch]:
    """Removes the assignments of a local name that nothing but this argument reads.

    Only whole statements and whole ``if`` chains that do nothing else go; where anything else might happen in
    them they stay.
    """
    scope = view.function(argument)
    if not isinstance(argument, ast.Name) or not isinstance(scope, (ast.FunctionDef, ast.AsyncFunctionDef)):
        return []
    mentions = [
        n for n in ast.walk(scope) if isinstance(n, ast.Name) and n.id == argument.id and n is not argument
    ]
    parameters = {a.arg for a in ast.walk(scope.args) if isinstance(a, ast.arg)}
    if not mentions or argument.id in parameters or any(isinstance(n.ctx, ast.Load) for n in mentions):
        return []
    outermost: list[ast.stmt] = []
    for mention in mentions:
        statement = _outermost(view, view.statement(mention), argument.id)
        if statement is None or view.function(mention) is not scope:
            return []
        if statement not in outermost:
            outermost.append(statement)
    blocks = [view.block_of(statement)[0] for statement in outermost]
    if any(all(s in outermost for s in block) for block in blocks):
        return []
    return [view.delete(statement, "it served an argument that is gone") for statement in outermost]


def _outermost(view: FileView, statement: ast.stmt, name: str) -> ast.stmt | None:
    """The assignment, or the largest ``if`` around it that holds nothing but such assignments."""
    if not _only_assigns(view, statement, name) or not view.stands_alone(statement):
        return None
    while isinstance(parent := view.parents[statement], ast.If) and _only_assigns(view, parent, name):
        statement = parent
    return statement


def _only_assigns(view: FileView, statement: ast.stmt, name: str) -> bool:
    if isinstance(statement, ast.If):
        return _is_harmless(statement.test) and all(
            _only_assigns(view, inner, name) for inner in [*statement.body, *statement.orelse]
        )
    if not isinstance(statement, ast.Assign) or len(statement.targets) != 1:
        return False
    target = statement.targets[0]
    return isinstance(target, ast.Name) and target.id == name and _is_harmless(statement.value)


def _is_harmless(node: ast.expr) -> bool:
    """Whether leaving out an expression cannot be noticed."""
    for inner in ast.walk(node):
        if isinstance(inner, (ast.Await, ast.Yield, ast.YieldFrom, ast.NamedExpr)):
            return False
        if isinstance(inner, ast.Call):
            function = inner.func
            called = function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")
            told = called in _HARMLESS or called in (
                "int",
                "str",
                "bool",
                "len",
                "isinstance",
                "getattr",
                "hasattr",
            )
            if not told and not called.startswith(("is_", "has_")):
                return False
    return True
