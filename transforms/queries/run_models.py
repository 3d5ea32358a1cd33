"""Whether code runs the model that an expression gives: calls it, or hands it on to a function of the repository that does."""

from __future__ import annotations

import ast

from .arguments import handed_in
from .file import File

_DEEPEST = 3


def is_run(file: File, model: ast.expr, depth: int = 0) -> bool:
    """Whether a model is called where it stands, under the name that it is given there, or in functions that get it."""
    parent = file.parents[model]
    while isinstance(parent, (ast.IfExp, ast.NamedExpr)):
        assert isinstance(parent, ast.expr)
        model, parent = parent, file.parents[parent]
    if isinstance(parent, ast.Assign):
        return any(_is_called(file, target, depth) for target in parent.targets)
    if isinstance(parent, ast.keyword):
        parent = file.parents[parent]
    if not isinstance(parent, ast.Call):
        return False
    if parent.func is model:
        return True
    for callee in file.program.callees(file, parent) if depth < _DEEPEST else ():
        other, function = file.program.function_node(callee)
        for call in ast.walk(function):
            if isinstance(call, ast.Call) and isinstance(call.func, ast.Name):
                if handed_in(other, call, call.func.id, parent) is model:
                    return True
    return False


def _is_called(file: File, target: ast.expr, depth: int) -> bool:
    """Whether what is assigned to a name or an attribute is run in the same function, or in the same class."""
    scope = file.enclosing_class(target) if isinstance(target, ast.Attribute) else file.function(target)
    text = ast.unparse(target)
    for node in ast.walk(scope or file.tree):
        if isinstance(node, (ast.Name, ast.Attribute)) and isinstance(node.ctx, ast.Load) and ast.unparse(node) == text:
            if not isinstance(file.parents[node], (ast.Assign, ast.IfExp)) and is_run(file, node, depth + 1):
                return True
    return False
