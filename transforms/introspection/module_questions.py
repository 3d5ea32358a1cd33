"""``hasattr(model, "module")``: whether it is asked to take a wrapper off, or to do something else for wrapped models."""

from __future__ import annotations

import ast

from ..view import FileView
from .told_apart import following, only_speaks

_TESTED = (ast.If, ast.IfExp, ast.While)


def only_asked_to_unwrap(view: FileView, question: ast.expr, depth: int = 0) -> bool:
    """Whether nothing but ``.module`` depends on the answer: directly, by a name it is given, or by the function's result."""
    node: ast.AST = question
    parent = view.parents[node]
    while isinstance(parent, (ast.BoolOp, ast.UnaryOp, ast.NamedExpr)):
        node, parent = parent, view.parents[parent]
    if isinstance(parent, _TESTED) and node is parent.test:
        return _unwraps(view, parent)
    if isinstance(parent, ast.Assert):
        return True
    if depth > 2:
        return False
    if isinstance(parent, ast.Assign) and len(parent.targets) == 1 and isinstance(parent.targets[0], ast.Name):
        name, scope = parent.targets[0].id, view.function(parent)
        uses = [n for n in view.nodes(ast.Name) if n.id == name and isinstance(n.ctx, ast.Load) and view.function(n) is scope]
        return all(only_asked_to_unwrap(view, use, depth + 1) for use in uses)
    function = view.function(parent)
    if isinstance(parent, ast.Return) and function is not None:
        calls = view.program.callers(view, function)
        return all(only_asked_to_unwrap(at, call, depth + 1) for at, call in calls)
    return False


def _unwraps(view: FileView, branch: ast.If | ast.IfExp | ast.While) -> bool:
    """Whether every statement of one of the two ways takes ``.module``, or calls for the answer again."""
    if isinstance(branch, ast.IfExp):
        return _takes_module(branch.body) or _takes_module(branch.orelse)
    if isinstance(branch, ast.If) and len(branch.body) == 1 and _leaves(branch.body[0]):
        rest = following(view, branch)
        if any(_takes_module(statement) for statement in rest[:1]):
            return True
    return any(
        way and any(_takes_module(s) for s in way) and all(_takes_module(s) or only_speaks(s) or _leaves(s) for s in way)
        for way in (branch.body, branch.orelse)
    ) or all(only_speaks(statement) for statement in (*branch.body, *branch.orelse))


def _takes_module(node: ast.AST) -> bool:
    return any(
        (isinstance(n, ast.Attribute) and n.attr == "module") or (isinstance(n, ast.Constant) and n.value == "module")
        for n in ast.walk(node)
    )


def _leaves(statement: ast.stmt) -> bool:
    return isinstance(statement, (ast.Return, ast.Continue, ast.Break))
