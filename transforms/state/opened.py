"""Which ``state_dict_type`` a ``with`` opens, also through functions of the repository that return or yield under it."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from ..analysis.symbols import FSDP1
from ..analysis.values import Derived
from ..migration import Migration
from ..view import FileView

_Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True, eq=False)
class Through:
    """The call of a function of the repository that opens a context for its caller."""

    view: FileView
    call: ast.Call
    function: _Function

    def argument(self, node: ast.expr) -> ast.expr | None:
        """What the caller hands in where the function's own code names a parameter; None where it does not."""
        if not isinstance(node, ast.Name) or node.id in self._bound_inside():
            return None
        given = self.function.args
        names = [parameter.arg for parameter in (*given.posonlyargs, *given.args)]
        if names and isinstance(self.call.func, ast.Attribute) and names[0] in ("self", "cls"):
            names = names[1:]
        by_keyword = {keyword.arg: keyword.value for keyword in self.call.keywords}
        return dict(zip(names, self.call.args, strict=False)).get(node.id) or by_keyword.get(node.id)

    def _bound_inside(self) -> set[str]:
        names = (node for node in ast.walk(self.function) if isinstance(node, ast.Name))
        return {name.id for name in names if isinstance(name.ctx, ast.Store)}


@dataclass(frozen=True, eq=False)
class Opened:
    """A call of ``state_dict_type`` that is in force under a ``with``."""

    view: FileView
    call: ast.Call
    through: Through | None = None


def is_context_call(view: FileView, call: ast.Call, name: str = "state_dict_type") -> bool:
    """Whether a call is ``FSDP.state_dict_type(…)`` or the same method of a model."""
    if not isinstance(call.func, ast.Attribute) or call.func.attr != name:
        return False
    return view.external(call.func.value) in (None, FSDP1)


def opened(migration: Migration, view: FileView, expression: ast.expr) -> list[Opened]:
    """The calls of ``state_dict_type`` that a context expression is, or may be the result of."""
    if isinstance(expression, ast.Name):
        scope = view.function(expression) or view.tree
        assigned = (node for node in ast.walk(scope) if isinstance(node, ast.Assign))
        values = [s.value for s in assigned if any(isinstance(t, ast.Name) and t.id == expression.id for t in s.targets)]
        return [found for value in values if not isinstance(value, ast.Name) for found in opened(migration, view, value)]
    if isinstance(expression, ast.IfExp):
        return [*opened(migration, view, expression.body), *opened(migration, view, expression.orelse)]
    if not isinstance(expression, ast.Call):
        return []
    if is_context_call(view, expression):
        return [Opened(view, expression)]
    returns = any(isinstance(v, Derived) and v.kind == "state_dict_context" for v in view.values(expression))
    return [
        Opened(owner, inner, Through(view, expression, function))
        for callee in migration.program.callees(view, expression)
        for owner, function in (migration.program.function_node(callee),)
        if isinstance(function, (ast.FunctionDef, ast.AsyncFunctionDef))
        for inner in _calls(owner, function)
        if returns or leaves_open(owner, inner)
    ]


def _calls(view: FileView, function: _Function) -> Iterator[ast.Call]:
    for node in ast.walk(function):
        if isinstance(node, ast.Call) and is_context_call(view, node):
            yield node


def leaves_open(view: FileView, call: ast.Call) -> bool:
    """Whether a function returns the context, or yields to its caller under it."""
    for ancestor in view.ancestors(call):
        if isinstance(ancestor, ast.Return):
            return True
        if isinstance(ancestor, (ast.With, ast.AsyncWith)):
            return any(isinstance(node, (ast.Yield, ast.YieldFrom)) for child in ancestor.body for node in ast.walk(child))
        if isinstance(ancestor, ast.stmt):
            return False
    return False
