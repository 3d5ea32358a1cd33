"""What is computed later than it is written: in generator expressions, lazy maps and generators that are iterated elsewhere."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from ..view import FileView
from .guards import Guard, GuardFinder

_LAZY = frozenset({"map", "filter", "zip", "enumerate", "chain", "from_iterable", "islice", "starmap", "iter"})


def guard_of_iteration(finder: GuardFinder, view: FileView, node: ast.AST) -> Guard | None:
    """A rank guard behind which a place is reached, because what it is a lazy part of is iterated there."""
    for owner, name, scope in _bound_lazily(finder, view, node):
        for use in ast.walk(scope):
            if isinstance(use, ast.Name) and use.id == name and isinstance(use.ctx, ast.Load):
                guards = finder.around(owner, use)
                if guards:
                    return guards[0]
    return None


def _bound_lazily(finder: GuardFinder, view: FileView, node: ast.AST) -> Iterator[tuple[FileView, str, ast.AST]]:
    """The names that such a value gets, with their scopes."""
    child = node
    for ancestor in view.ancestors(node):
        if isinstance(ancestor, ast.GeneratorExp) and child is not ancestor.generators[0]:
            yield from _names_of(view, ancestor)
        elif isinstance(ancestor, ast.Lambda):
            yield from _names_of(view, ancestor)
            return
        elif isinstance(ancestor, (ast.FunctionDef, ast.AsyncFunctionDef)):
            is_generator = _yields(view, ancestor)
            for caller, call in finder.program.callers(view, ancestor):
                if is_generator or _is_lazy(call):
                    yield from _names_of(caller, call)
            return
        child = ancestor


def _names_of(view: FileView, value: ast.expr) -> Iterator[tuple[FileView, str, ast.AST]]:
    """The names that a lazy value is bound to as it is, or within other lazy ones."""
    current: ast.AST = value
    parent = view.parents[current]
    while isinstance(parent, ast.Call) and _is_lazy(parent):
        current, parent = parent, view.parents[parent]
    if isinstance(current, ast.Lambda) or not isinstance(parent, (ast.Assign, ast.AnnAssign)):
        return
    scope = view.function(current) or view.tree
    for target in parent.targets if isinstance(parent, ast.Assign) else [parent.target]:
        if isinstance(target, ast.Name):
            yield view, target.id, scope


def _is_lazy(call: ast.Call) -> bool:
    function = call.func
    name = function.attr if isinstance(function, ast.Attribute) else function.id if isinstance(function, ast.Name) else ""
    return name in _LAZY


def _yields(view: FileView, function: ast.AST) -> bool:
    return any(
        isinstance(node, (ast.Yield, ast.YieldFrom)) and view.function(node) is function for node in ast.walk(function)
    )
