"""Where a flag comes from when the place that asks it did not set it: an argument, or an attribute set elsewhere."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from ..program import Program
from ..state.passages import Passage
from ..view import FileView


def given_as(program: Program, view: FileView, name: ast.Name) -> Iterator[tuple[FileView, ast.expr]]:
    """What callers pass for a name that is a parameter, and its default."""
    function = view.function(name)
    if not isinstance(function, ast.FunctionDef):
        return
    arguments = function.args
    every = [*arguments.posonlyargs, *arguments.args]
    if not any(a.arg == name.id for a in (*every, *arguments.kwonlyargs)):
        return
    for caller, call in program.callers(view, function):
        argument = Passage(program, view, function, caller, call).argument(name.id)
        if argument is not None:
            yield caller, argument


def branch_taken(program: Program, view: FileView, returned: ast.expr, caller: FileView, call: ast.Call) -> ast.expr:
    """What a function returns at a call: of ``a if flag else b``, the branch that the call's own flag picks."""
    function = view.function(returned)
    if not isinstance(returned, ast.IfExp) or not isinstance(returned.test, ast.Name):
        return returned
    if not isinstance(function, ast.FunctionDef):
        return returned
    flag = Passage(program, view, function, caller, call).argument(returned.test.id)
    if flag is None:
        flag = _default(function, returned.test.id)
    if not isinstance(flag, ast.Constant):
        return returned
    return returned.body if flag.value else returned.orelse


def _default(function: ast.FunctionDef, name: str) -> ast.expr | None:
    arguments = function.args
    positional = [*arguments.posonlyargs, *arguments.args]
    pairs = [*zip(reversed(positional), reversed(arguments.defaults), strict=False)]
    pairs += [(a, d) for a, d in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True) if d is not None]
    return next((default for argument, default in pairs if argument.arg == name), None)


def set_as(program: Program, node: ast.Attribute) -> Iterator[tuple[FileView, ast.expr]]:
    """What ``args.save_logs`` is assigned wherever an object of that name has the attribute set."""
    owner = _last_name(node.value)
    if not owner or owner in ("self", "cls"):
        return
    for index, file in enumerate(program.files):
        if not any(attribute == node.attr for _, attribute, _ in file.stores):
            continue
        view = program.view(index)
        for statement in ast.walk(view.tree):
            if not isinstance(statement, ast.Assign):
                continue
            for target in statement.targets:
                if isinstance(target, ast.Attribute) and target.attr == node.attr and _last_name(target.value) == owner:
                    yield view, statement.value


def _last_name(node: ast.expr) -> str:
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""
