"""Where code runs the model that an expression gives: calls it, or hands it on to a function of the repository that does."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from .arguments import handed_in
from .file import File

_DEEPEST = 3


def runs(file: File, model: ast.expr, depth: int = 0) -> Iterator[tuple[File, ast.Call]]:
    """The calls of a model where it stands, under the name that it is given there, or in functions that get it."""
    parent = file.parents[model]
    while isinstance(parent, (ast.IfExp, ast.NamedExpr)):
        assert isinstance(parent, ast.expr)
        model, parent = parent, file.parents[parent]
    if isinstance(parent, ast.Assign):
        for target in parent.targets:
            yield from _calls_of(file, target, depth)
    if isinstance(parent, ast.keyword):
        parent = file.parents[parent]
    if not isinstance(parent, ast.Call):
        return
    if parent.func is model:
        yield file, parent
        return
    for callee in file.program.callees(file, parent) if depth < _DEEPEST else ():
        other, function = file.program.function_node(callee)
        for call in ast.walk(function):
            if isinstance(call, ast.Call) and isinstance(call.func, ast.Name):
                if handed_in(other, call, call.func.id, parent) is model:
                    yield other, call


def _calls_of(file: File, target: ast.expr, depth: int) -> Iterator[tuple[File, ast.Call]]:
    """The calls of what is assigned to a name or an attribute, in the same function, or in the same class."""
    scope = file.enclosing_class(target) if isinstance(target, ast.Attribute) else file.function(target)
    text = ast.unparse(target)
    for node in ast.walk(scope or file.tree):
        if isinstance(node, (ast.Name, ast.Attribute)) and isinstance(node.ctx, ast.Load) and ast.unparse(node) == text:
            if not isinstance(file.parents[node], (ast.Assign, ast.IfExp)):
                yield from runs(file, node, depth + 1)
