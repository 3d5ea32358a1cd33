"""Places that an exception leads to, on the rank alone that it comes to."""

from __future__ import annotations

import ast

from .file import File

_DEEPEST = 3


def is_in_cleanup(file: File, node: ast.AST, depth: int = 0) -> bool:
    """Whether a place stands in an ``except`` or ``finally``, or in a function that is called there."""
    inside: ast.AST = node
    for around in file.ancestors(node):
        if isinstance(around, ast.ExceptHandler) or (isinstance(around, ast.Try) and inside in around.finalbody):
            return True
        inside = around
    function = file.function(node)
    if depth == _DEEPEST or not isinstance(function, (ast.FunctionDef, ast.AsyncFunctionDef)):
        return False
    return any(is_in_cleanup(caller, call, depth + 1) for caller, call in file.program.callers(file, function))
