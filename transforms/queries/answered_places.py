"""Places that an earlier run has answered for: code around them, or what they are given, bears a helper."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from ..facts.helper_calls import is_given_back, stood_for
from .file import File
from .gathered_places import contexts_around

_HOLDING = frozenset({"everything_whole_on_each_rank", "holding_whole", "whole_on_each_rank", "whole_when_asked"})


def is_held(file: File, node: ast.AST) -> bool:
    """Whether each rank holds models whole at a place, so that it may work on them alone."""
    function = node if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) else file.function(node)
    decorators = [] if function is None or isinstance(function, ast.Lambda) else function.decorator_list
    return any(_holds(file, call) for call in [*contexts_around(file, node), *decorators] if isinstance(call, ast.Call))


def _holds(file: File, call: ast.Call) -> bool:
    return isinstance(call.func, ast.Name) and file.helpers.get(call.func.id) in _HOLDING


def is_given_in_helper(file: File, call: ast.Call) -> bool:
    """Whether a call, or its function, gets something by a helper that makes it bearable there."""
    given = [call.func, *call.args, *(keyword.value for keyword in call.keywords)]
    return any(is_given_back(one, file.helpers) for one in given)


def answered_calls(file: File, method: str) -> Iterator[tuple[ast.expr, ast.expr]]:
    """The calls of helpers in the place of a method, or the functions in which it was handed on; each with its object."""
    for call in file.nodes(ast.Call) if file.helpers else ():
        before = stood_for(call, file.helpers)
        if isinstance(before, ast.Call) and isinstance(before.func, ast.Attribute) and before.func.attr == method:
            around = file.parents[call]
            yield around if isinstance(around, ast.Lambda) else call, before.func.value
