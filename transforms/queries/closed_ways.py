"""Ways that no run goes: a call hands in a constant for what the function asks in front of the next call."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from itertools import pairwise

from .arguments import handed_in
from .file import File
from .known_conditions import tests_in_front

Place = tuple[File, ast.AST]


def is_closed(ways: Sequence[Place]) -> bool:
    """Whether calls that lead to a place, which is the last, never do: ``save(final, with_states=False)`` takes no states."""
    return any(_keeps_out(call, *place) for (_, call), place in pairwise(ways) if isinstance(call, ast.Call))


def _keeps_out(call: ast.Call, file: File, place: ast.AST) -> bool:
    """Whether what a call hands in contradicts a test of its function's in front of a place."""
    for _, part in tests_in_front(file, place):
        asked, wanted = (part.operand, False) if isinstance(part, ast.UnaryOp) and isinstance(part.op, ast.Not) else (part, True)
        if not isinstance(asked, ast.Name) or _is_bound_around(file, place, asked.id):
            continue
        given = handed_in(file, place, asked.id, call) or _default(file, place, asked.id, call)
        if isinstance(given, ast.Constant) and bool(given.value) != wanted:
            return True
    return False


def _is_bound_around(file: File, place: ast.AST, name: str) -> bool:
    """Whether the function around a place binds a name itself."""
    return any(file.function(node) is file.function(place) for node in file.bindings.get(name, ()))


def _default(file: File, place: ast.AST, name: str, call: ast.Call) -> ast.expr | None:
    """What a parameter is where a call surely hands in nothing for it."""
    function = file.function(place)
    unpacks = any(isinstance(argument, ast.Starred) for argument in call.args) or any(k.arg is None for k in call.keywords)
    if unpacks or not isinstance(function, (ast.FunctionDef, ast.AsyncFunctionDef)):
        return None
    positional = [*function.args.posonlyargs, *function.args.args]
    defaults = dict(zip([a.arg for a in reversed(positional)], reversed(function.args.defaults), strict=False))
    by_keyword = {a.arg: value for a, value in zip(function.args.kwonlyargs, function.args.kw_defaults, strict=True)}
    return (defaults | by_keyword).get(name)
