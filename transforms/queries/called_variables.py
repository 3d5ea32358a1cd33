"""Calls of what a variable holds: a class that was handed in, or chosen. What is put into the variable is a site of its own."""

from __future__ import annotations

import ast

from ..flow.values import ModuleValue
from .assignments import assigned_values
from .file import File


def calls_variable(file: File, call: ast.Call) -> bool:
    """Whether a call names no class itself: its variable may hold another one, or a function that wraps nothing."""
    function = call.func
    if isinstance(function, ast.Attribute):
        owners = file.values(function.value)
        return bool(owners) and not any(isinstance(v, ModuleValue) for v in owners) and file.external(function.value) is None
    if not isinstance(function, ast.Name) or function.id in file.imported_names:
        return False
    around = (a for a in file.ancestors(call) if isinstance(a, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)))
    handed_in = any(argument.arg == function.id for a in around for argument in ast.walk(a.args) if isinstance(argument, ast.arg))
    return handed_in or bool(assigned_values(file, function))
