"""Things that exist on some ranks only: a loader that rank 0 alone builds cannot be iterated by all."""

from __future__ import annotations

import ast

from ..state.passages import Passage
from ..view import FileView
from .guards import GuardFinder

_DEEPEST = 3


def missing_somewhere(
    finder: GuardFinder, view: FileView, place: ast.AST, made: frozenset[str] | set[str] = frozenset()
) -> str:
    """Something that a piece of code reads and that exists on some ranks only; empty where there is nothing.

    ``made`` are names that are known to be made on all of them.
    """
    bound = {n.id for n in ast.walk(place) if isinstance(n, ast.Name) and not isinstance(n.ctx, ast.Load)} | made
    for node in ast.walk(place):
        if isinstance(node, (ast.Name, ast.Attribute)) and isinstance(node.ctx, ast.Load):
            is_own = isinstance(node, ast.Name) and node.id in bound
            if not is_own and _made_on_some_ranks(finder, view, node):
                return view.text(node)
    return ""


def _made_on_some_ranks(finder: GuardFinder, view: FileView, node: ast.Name | ast.Attribute, depth: int = 0) -> bool:
    """Whether a name, or an attribute of ``self``, is made behind rank guards only, here or where it is passed in."""
    if isinstance(node, ast.Attribute):
        values = [value for value in finder.conditions.assigned(view, node) if not _is_none(value)]
        return bool(values) and all(_is_guarded(finder, view, value) for value in values)
    function = view.function(node)
    scopes: tuple[ast.AST, ...] = (function, view.tree) if function is not None else (view.tree,)
    for scope in scopes:
        stores = [
            store
            for store in ast.walk(scope)
            if isinstance(store, ast.Name)
            and store.id == node.id
            and isinstance(store.ctx, ast.Store)
            and view.function(store) is (function if scope is function else None)
            and not _stores_none(view, store)
        ]
        if stores:
            return all(_is_guarded(finder, view, store) for store in stores)
        if isinstance(scope, ast.FunctionDef) and any(a.arg == node.id for a in _parameters(scope)):
            return depth < _DEEPEST and _is_passed_by_some(finder, view, scope, node.id, depth)
    return False


def _is_passed_by_some(finder: GuardFinder, view: FileView, function: ast.FunctionDef, name: str, depth: int) -> bool:
    for caller, call in finder.program.callers(view, function):
        argument = Passage(finder.program, view, function, caller, call).argument(name)
        if isinstance(argument, (ast.Name, ast.Attribute)) and _made_on_some_ranks(finder, caller, argument, depth + 1):
            return True
    return False


def _is_guarded(finder: GuardFinder, view: FileView, node: ast.AST) -> bool:
    statement = view.statement(node)
    value = getattr(statement, "value", None)
    if isinstance(value, ast.IfExp) and (_is_none(value.body) or _is_none(value.orelse)):
        return finder.conditions.selects_ranks(view, value.test)
    return bool(finder.around(view, node))


def _stores_none(view: FileView, store: ast.Name) -> bool:
    parent = view.parents[store]
    return isinstance(parent, (ast.Assign, ast.AnnAssign)) and parent.value is not None and _is_none(parent.value)


def _is_none(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is None


def _parameters(function: ast.FunctionDef) -> list[ast.arg]:
    return [*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs]
