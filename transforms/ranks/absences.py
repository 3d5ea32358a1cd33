"""Values that some ranks do not have: ``if metrics is not None`` selects ranks where others than the first got None."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import TYPE_CHECKING

from ..analysis.values import FunctionValue
from ..view import FileView

if TYPE_CHECKING:
    from .conditions import RankConditions

_DEEPEST = 4


def is_absent_somewhere(conditions: RankConditions, view: FileView, node: ast.expr, depth: int) -> bool:
    """Whether a name is None on some ranks alone: only they assign it, or what it is assigned gives None elsewhere."""
    if depth > _DEEPEST or not isinstance(node, (ast.Name, ast.Attribute)):
        return False
    values = [value for value in conditions.assigned(view, node) if not _is_none(value)]
    return bool(values) and all(
        _is_none_somewhere(conditions, view, value, depth + 1) or _stands_behind_a_test(conditions, view, value, depth)
        for value in values
    )


def _is_none_somewhere(conditions: RankConditions, view: FileView, value: ast.expr, depth: int) -> bool:
    if isinstance(value, ast.IfExp):
        return (_is_none(value.body) or _is_none(value.orelse)) and conditions.selects_ranks(view, value.test, depth)
    if isinstance(value, ast.Call) and depth <= _DEEPEST:
        return any(_gives_none_somewhere(conditions, function, depth) for function in _functions(conditions, view, value))
    return False


def _gives_none_somewhere(conditions: RankConditions, function: FunctionValue, depth: int) -> bool:
    """Whether a function runs, or returns anything but None, on some ranks only."""
    owner, node = conditions.program.function_node(function)
    decorators: list[ast.expr] = getattr(node, "decorator_list", [])
    if any(conditions.is_decorator(d) or _calls_on_some_ranks(conditions, owner, d, depth) for d in decorators):
        return True
    returned = [value for _, value in conditions.returned(function) if not _is_none(value)]
    if returned and all(_stands_behind_a_test(conditions, owner, value, depth) for value in returned):
        return True
    return any(
        _is_none_somewhere(conditions, owner, value, depth + 1)
        or (isinstance(value, ast.Name) and _may_be_absent(conditions, owner, value, depth + 1))
        for value in returned
    )


def _calls_on_some_ranks(conditions: RankConditions, view: FileView, decorator: ast.expr, depth: int) -> bool:
    """Whether a decorator of the repository calls what it is given behind a test for the rank."""
    named = decorator.func if isinstance(decorator, ast.Call) else decorator
    for value in view.values(named):
        if not isinstance(value, FunctionValue):
            continue
        owner, node = conditions.program.function_node(value)
        parameters = {a.arg for a in ast.walk(node) if isinstance(a, ast.arg)}
        for call in ast.walk(node):
            if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id in parameters:
                if _stands_behind_a_test(conditions, owner, call, depth):
                    return True
    return False


def _may_be_absent(conditions: RankConditions, view: FileView, name: ast.Name, depth: int) -> bool:
    """Whether any assignment of a name gives None somewhere: the one that is returned may be that one."""
    return depth <= _DEEPEST and any(
        _is_none_somewhere(conditions, view, value, depth) for value in conditions.assigned(view, name)
    )


def _functions(conditions: RankConditions, view: FileView, call: ast.Call) -> Iterator[FunctionValue]:
    """What a call reaches; where nothing says whose method it is, every method of that name."""
    program = conditions.program
    callees = program.callees(view, call)
    yield from callees
    if callees or not isinstance(call.func, ast.Attribute) or view.external(call.func) is not None:
        return
    for index, file in enumerate(program.files):
        for position, function in enumerate(file.functions):
            if function.name == call.func.attr and function.owner_class >= 0:
                yield FunctionValue(index, position)


def _stands_behind_a_test(conditions: RankConditions, view: FileView, node: ast.expr, depth: int) -> bool:
    child: ast.AST = node
    for ancestor in view.ancestors(node):
        if isinstance(ancestor, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
            return False
        if isinstance(ancestor, ast.If) and child is not ancestor.test:
            if conditions.selects_ranks(view, ancestor.test, depth + 1):
                return True
        child = ancestor
    return False


def _is_none(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is None
