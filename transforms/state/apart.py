"""Uses of a model that no wrap can have touched: beside every wrap, or in a program of their own."""

from __future__ import annotations

import ast

from ..analysis.values import Annotated, Wrapped
from ..migration import Migration
from ..order import Place
from ..sites import Site
from ..training.conditions import conditions_of
from ..view import FileView


def apart_from_wraps(migration: Migration, site: Site) -> str:
    """Why the model of a use is a plain one as far as can be told; empty where it may be sharded."""
    if site.group is None or not site.group.wraps:
        return ""
    if _is_beside(migration, site):
        return "runs only where the model is not wrapped"
    if _is_another_program(migration, site):
        return "runs in programs that wrap no model"
    return ""


def _is_beside(migration: Migration, site: Site) -> bool:
    """Whether a condition around a use is the opposite of one around each wrap (``if horovod:``, ``if not horovod:``)."""
    assert site.group is not None
    around = [conditions_of(wrap.view, wrap.node) for wrap in site.group.wraps]
    return _runs_beside(migration, site.view, site.node, around, set())


def _runs_beside(migration: Migration, view: FileView, node: ast.AST, around: list[set[str]], asked: set[ast.AST]) -> bool:
    """The same for a place: by a condition around it, or around every call of the function that it stands in."""
    here = conditions_of(view, node)
    opposites = {_opposite(condition) for condition in here if _stays(migration, condition.removeprefix("not "))}
    if all(opposites & conditions for conditions in around):
        return True
    function = view.function(node)
    if not isinstance(function, ast.FunctionDef) or function in asked or not _is_only_called(migration, function.name):
        return False
    callers = migration.program.callers(view, function)
    further = {*asked, function}
    return bool(callers) and all(_runs_beside(migration, at, call, around, further) for at, call in callers)


def _is_only_called(migration: Migration, name: str) -> bool:
    """Whether nothing hands on a function of a name: each mention of it calls it."""
    for view in migration.program.views_with(name):
        for node in view.nodes(ast.Name, ast.Attribute):
            if name != (node.id if isinstance(node, ast.Name) else node.attr):
                continue
            parent = view.parents[node]
            if not isinstance(parent, ast.Call) or parent.func is not node:
                return False
    return True


def _stays(migration: Migration, name: str) -> bool:
    """Whether a flag keeps its value: nothing sets an attribute of that name, and at most one assignment a variable."""
    if not name.isidentifier():
        return False
    stored: list[ast.AST] = []
    for view in migration.program.views_with(name):
        for node in view.nodes(ast.Name, ast.Attribute):
            if isinstance(node.ctx, ast.Store) and name == (node.id if isinstance(node, ast.Name) else node.attr):
                stored.append(node)
    return len(stored) <= 1 and all(isinstance(node, ast.Name) for node in stored)


def _opposite(condition: str) -> str:
    return condition.removeprefix("not ") if condition.startswith("not ") else f"not {condition}"


def _is_another_program(migration: Migration, site: Site) -> bool:
    """Whether nothing that reaches a use reaches a wrap, and everything that does is seen.

    The flow of values tells objects apart by where they are made, so two scripts with one factory seem to share them.
    """
    assert site.group is not None
    if any(isinstance(value, (Wrapped, Annotated)) for value in site.values):
        return False
    ways = migration.order.functions_to((site.view, site.node))
    if not all(_is_followed(migration, view, node, ways) for view, node in ways):
        return False
    return all(
        wrap.view is not site.view and ways.isdisjoint(migration.order.functions_to((wrap.view, wrap.node)))
        for wrap in site.group.wraps
    )


def _is_followed(migration: Migration, view: FileView, node: ast.AST, ways: set[Place]) -> bool:
    """Whether a way to a use begins in a module, or goes on in functions that call it and are among the ways themselves."""
    if isinstance(node, ast.Module):
        return True
    callers = migration.program.callers(view, node)
    return bool(callers) and all((at, at.function(call) or at.tree) in ways for at, call in callers)
