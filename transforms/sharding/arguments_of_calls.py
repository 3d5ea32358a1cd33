"""Which argument of a call reaches which parameter of a function."""

from __future__ import annotations

import ast

from ..analysis.values import Bound
from ..view import FileView


def argument_of(
    place: FileView,
    call: ast.Call,
    view: FileView,
    function: ast.FunctionDef | ast.AsyncFunctionDef,
    name: str,
) -> ast.expr | None:
    """What a call gives for a parameter by position or by name; None where it gives nothing, or not for sure."""
    if any(isinstance(a, ast.Starred) for a in call.args) or any(k.arg is None for k in call.keywords):
        return None
    named = next((k.value for k in call.keywords if k.arg == name), None)
    if named is not None:
        return named
    positional = [a.arg for a in [*function.args.posonlyargs, *function.args.args]]
    if isinstance(view.parents[function], ast.ClassDef) and not _is_static(view, function):
        bound = [isinstance(value, Bound) for value in place.values(call.func)]
        if not isinstance(call.func, ast.Attribute) or (bound and not all(bound)):
            return None
        positional = positional[1:]
    index = positional.index(name) if name in positional else len(call.args)
    return call.args[index] if index < len(call.args) else None


def _is_static(view: FileView, function: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    return any(view.external(decorator) == "builtins.staticmethod" for decorator in function.decorator_list)
