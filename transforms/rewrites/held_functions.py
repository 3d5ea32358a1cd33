"""Whole functions inside of a context: by a decorator, where their lines would all move to the right in a ``with`` block."""

from __future__ import annotations

import ast
from collections.abc import Sequence

import libcst as cst

from ..queries.file import File
from ..queries.ways_out import ways_out
from .changes import Change, replace_statement
from .held_blocks import moves_too_much
from .templates import expression

_MOVED = 12
"""From how many lines on a decorator shows more than a block that has moved."""


def decorated(file: File, function: ast.FunctionDef, value: cst.BaseExpression) -> Change:
    """A decorator above those that a function has."""

    def build(node: cst.CSTNode) -> list[cst.CSTNode]:
        assert isinstance(node, cst.FunctionDef)
        return [node.with_changes(decorators=[cst.Decorator(value), *node.decorators])]

    return replace_statement(file, function, build)  # type: ignore[arg-type]


def with_arguments(helper: str, function: ast.FunctionDef, things: Sequence[str], needed: str = "") -> cst.BaseExpression:
    """A decorator that gets at things by the arguments of the function below it; with ``needed``, where that holds."""
    used = _names([*things, *([needed] if needed else [])])
    arguments = [*function.args.posonlyargs, *function.args.args]
    names = [argument.arg for argument in arguments]
    first = len(arguments) - len(function.args.defaults)
    spelled = [*names[:first], *(f"{n}={ast.unparse(d)}" for n, d in zip(names[first:], function.args.defaults, strict=True))]
    parameters = ", ".join([*spelled[: max(names.index(name) for name in used if name in names) + 1], "*_", "**__"])
    given = f"({', '.join(things)}{',' if len(things) == 1 else ''})"
    return expression(f"{helper}(lambda {parameters}: {f'{given} if {needed} else ()' if needed else given})")


def function_to_decorate(
    file: File, held: Sequence[ast.stmt], things: Sequence[str], needed: str = ""
) -> ast.FunctionDef | None:
    """The function that statements are the end of, where its arguments name all that is held, and a block would move much."""
    function = file.function(held[0])
    if not isinstance(function, ast.FunctionDef) or function.decorator_list or held[-1] is not function.body[-1]:
        return None
    last = held[-1].end_lineno or held[-1].lineno
    if held[0] not in function.body or last - held[0].lineno < _MOVED or moves_too_much(file, list(held)):
        return None
    arguments = {a.arg for a in (*function.args.posonlyargs, *function.args.args)}
    used = _names([*things, *([needed] if needed else [])])
    in_front = function.body[: function.body.index(held[0])]
    if not used or not used <= arguments or not all(_only_assigns(s, used) for s in in_front) or ways_out(in_front):
        return None
    return None if any(isinstance(n, (ast.Yield, ast.YieldFrom)) for n in ast.walk(function)) else function


def _names(texts: Sequence[str]) -> set[str]:
    return {n.id for text in texts for n in ast.walk(ast.parse(text)) if isinstance(n, ast.Name)}


def _only_assigns(statement: ast.stmt, used: set[str]) -> bool:
    """Whether a statement only gives values that nothing computes to other names than these."""
    if isinstance(statement, ast.Expr):
        return isinstance(statement.value, ast.Constant)
    stored = [n for n in ast.walk(statement) if isinstance(n, (ast.Name, ast.Attribute)) and isinstance(n.ctx, ast.Store)]
    is_simple = isinstance(statement, ast.Assign) and not any(isinstance(n, ast.Call) for n in ast.walk(statement))
    return is_simple and all(isinstance(n, ast.Name) and n.id not in used for n in stored)
