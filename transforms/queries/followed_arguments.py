"""Arguments of which all that becomes of them is written in functions of the repository."""

from __future__ import annotations

import ast

from ..flow.values import FunctionValue
from .arguments import parameter_for
from .file import File

_DEEPEST = 4
_HARMLESS = frozenset({"isinstance", "hasattr", "type", "len", "id", "print", "callable"})


def is_seen_whole(file: File, call: ast.Call, argument: ast.expr, depth: int = 0) -> bool:
    """Whether functions of the repository alone get an argument, which read its attributes and hand it on to such ones.

    Where it is kept, returned or given another name, more may become of it.
    """
    functions = file.program.callees(file, call)
    known = {value for value in file.called_values(call) if isinstance(value, FunctionValue)}
    if not functions or depth > _DEEPEST or known != set(functions):
        return False
    for owner, node in map(file.program.function_node, functions):
        is_method = owner.enclosing_class(node) is not None
        name = parameter_for(node, argument, call, is_method) if isinstance(node, ast.FunctionDef) else None
        if name is None:
            return False
        uses = [n for n in ast.walk(node) if isinstance(n, ast.Name) and n.id == name]
        if not all(_is_followed(owner, use, depth) for use in uses):
            return False
    return True


def _is_followed(file: File, use: ast.Name, depth: int) -> bool:
    parent = file.parents[use]
    if isinstance(parent, ast.keyword):
        parent = file.parents[parent]
    if not isinstance(use.ctx, ast.Load) or isinstance(parent, ast.Attribute):
        return isinstance(use.ctx, ast.Load)
    if isinstance(parent, ast.Call) and parent.func is not use:
        is_harmless = isinstance(parent.func, ast.Name) and parent.func.id in _HARMLESS
        return is_harmless or is_seen_whole(file, parent, use, depth + 1)
    return isinstance(parent, (ast.Compare, ast.If, ast.BoolOp, ast.UnaryOp))
