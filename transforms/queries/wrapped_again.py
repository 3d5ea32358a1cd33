"""Models that may be wrapped more than once: in a loop, or in phases that each wrap the same model anew."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable

from ..flow.values import Wrapped
from .file import File

Wrap = tuple[File, ast.Call, ast.expr]
"""A constructor call, with its file and what it wraps."""


def may_be_wrapped_again(wrap: Wrap, wraps: Iterable[Wrap], is_fresh: Callable[[File, ast.AST, ast.expr], bool]) -> bool:
    """Whether a model that a call wraps may have been wrapped before, or may be wrapped again, without being made anew."""
    models = _models(wrap)
    same = [other for other in wraps if other[1] is not wrap[1] and models & _models(other)]
    if not all(_is_made_in_each_round(one) for one in (wrap, *same)):
        return True
    return bool(same) and not all(is_fresh(file, call, model) for file, call, model in (wrap, *same))


def _models(wrap: Wrap) -> set[object]:
    file, _, model = wrap
    return {value for value in file.values(model) if not isinstance(value, Wrapped)}


def _is_made_in_each_round(wrap: Wrap) -> bool:
    """Whether the loops around a wrap, if there are any, give it another model each time."""
    file, call, model = wrap
    around: list[ast.AST] = list(file.ancestors(call))
    if file.function(call) in around:
        around = around[: around.index(file.function(call))]  # type: ignore[arg-type]
    names = {ast.unparse(n) for n in ast.walk(model) if isinstance(n, ast.Name | ast.Attribute)}
    for loop in (a for a in around if isinstance(a, ast.For | ast.AsyncFor | ast.While)):
        stored = [n for n in ast.walk(loop) if isinstance(n, ast.Name | ast.Attribute) and isinstance(n.ctx, ast.Store)]
        if not any(ast.unparse(n) in names and file.statement(n) is not file.statement(call) for n in stored):
            return False
    return True
