"""Values that only go into files: nobody who gets them changes them, so that two reads of one state may share it."""

from __future__ import annotations

import ast

from .arguments import parameter_for
from .file import File
from .saved_models import is_writer

_DEEPEST = 3


def is_only_written(file: File, node: ast.AST, depth: int = 0) -> bool:
    """Whether a value, itself or as an entry, is given to a writer alone, also by functions of the repository."""
    inside = node
    for around in file.ancestors(node):
        if isinstance(around, ast.Call):
            return inside is not around.func and _writes(file, around, inside, depth)
        if not isinstance(around, (ast.Dict, ast.List, ast.Tuple, ast.IfExp, ast.keyword)):
            return False
        inside = inside if isinstance(around, ast.keyword) else around
    return False


def _writes(file: File, call: ast.Call, given: ast.AST, depth: int) -> bool:
    """Whether all that a call reaches does nothing with an argument but to write it."""
    if is_writer(file.external(call.func) or ""):
        return given in call.args
    callees = file.program.callees(file, call) if depth < _DEEPEST and isinstance(given, ast.expr) else []
    return bool(callees) and all(_hands_to_writers(*file.program.function_node(f), call, given, depth) for f in callees)  # type: ignore[arg-type]


def _hands_to_writers(file: File, function: ast.AST, call: ast.Call, given: ast.expr, depth: int) -> bool:
    if not isinstance(function, ast.FunctionDef):
        return False
    name = parameter_for(function, given, call, is_method=file.enclosing_class(function) is not None)
    uses = [n for n in ast.walk(function) if isinstance(n, ast.Name) and n.id == name]
    return bool(uses) and all(isinstance(n.ctx, ast.Load) and is_only_written(file, n, depth + 1) for n in uses)
