"""Models that may be wrapped more than once: in a loop, or in phases that each wrap the same model anew."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable

from ..flow.values import Wrapped
from .arguments import handed_in
from .file import File

_DEEPEST = 3

Wrap = tuple[File, ast.Call, ast.expr]
"""A constructor call, with its file and what it wraps."""


def may_be_wrapped_again(wrap: Wrap, wraps: Iterable[Wrap], is_fresh: Callable[[File, ast.AST, ast.expr], bool]) -> bool:
    """Whether a model that a call wraps may have been wrapped before, or may be wrapped again, without being made anew."""
    own = _places(wrap)
    others = [place for other in wraps for place in (own if other[1] is wrap[1] else _places(other))]
    same = [[o for o in others if o[1] is not place[1] and _models(place) & _models(o)] for place in own]
    if not all(_is_made_in_each_round(one) for one in (*own, *(o for found in same for o in found))):
        return True
    known = {one[1]: one for place, found in zip(own, same, strict=True) if found for one in (place, *found)}
    return not all(is_fresh(file, call, model) for file, call, model in known.values())


def _places(wrap: Wrap, depth: int = 0) -> list[Wrap]:
    """Where a model is wrapped, as far up as it is handed on: the calls of a function that wraps what it is given."""
    file, call, model = wrap
    function = file.function(call)
    if not isinstance(model, ast.Name) or not isinstance(function, ast.FunctionDef) or depth > _DEEPEST:
        return [wrap]
    if any(file.function(binding) is function and _is_before(binding, call) for binding in file.bindings.get(model.id, ())):
        return [wrap]
    callers = file.program.callers(file, function)
    given = [(caller, made, handed_in(file, call, model.id, made)) for caller, made in callers]
    if not given or any(value is None for _, _, value in given):
        return [wrap]
    return [place for caller, made, value in given if value is not None for place in _places((caller, made, value), depth + 1)]


def _is_before(binding: ast.expr, call: ast.Call) -> bool:
    return binding.lineno < call.lineno


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
