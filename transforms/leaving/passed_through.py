"""Private functions that would do nothing any more but give back what they are given: their calls go."""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence

from ..migration import Migration
from ..text.edits import apply_edits
from ..text.patches import Patch, flatten
from ..view import FileView

PASSED_THROUGH = "it would give back what it is given"
"""Why a function goes."""
_SIMPLE = (ast.Name, ast.Attribute, ast.Call, ast.Subscript, ast.Constant)


def passed_through(migration: Migration, patches: Mapping[str, Sequence[Patch]]) -> list[Patch]:
    """Takes out each such function of a module, and puts the arguments in the place of its calls."""
    found: list[Patch] = []
    for path, wanted in patches.items():
        view = migration.program.view(path)
        touched = [
            statement
            for statement in view.tree.body
            if isinstance(statement, ast.FunctionDef) and _is_private(statement) and _is_changed(view, statement, wanted)
        ]
        after = _functions(view, wanted) if touched else {}
        for function in touched:
            given = _given_back(after[function.name]) if function.name in after else ""
            calls = _calls(migration, view, function, given) if given and _given_back(function) != given else None
            if calls:
                found.append(_without(view, function))
                found.extend(_argument_alone(view, call, argument) for call, argument in calls)
    return found


def _is_private(function: ast.FunctionDef) -> bool:
    return function.name.startswith("_") and not function.name.startswith("__") and not function.decorator_list


def _is_changed(view: FileView, function: ast.FunctionDef, patches: Sequence[Patch]) -> bool:
    start, end = view.source.span(function)
    return any(start <= patch.start and patch.end <= end for patch in patches)


def _functions(view: FileView, patches: Sequence[Patch]) -> dict[str, ast.FunctionDef]:
    """The functions of a module once the patches are applied."""
    try:
        after = ast.parse(apply_edits(view.source, flatten(view.source, patches)))
    except SyntaxError:
        return {}
    return {statement.name: statement for statement in after.body if isinstance(statement, ast.FunctionDef)}


def _given_back(function: ast.FunctionDef) -> str:
    """The only parameter, where returning it is all that a function does."""
    body = function.body[1:] if ast.get_docstring(function) is not None else function.body
    arguments = function.args
    names = [argument.arg for argument in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)]
    if len(body) != 1 or not isinstance(body[0], ast.Return) or len(names) != 1 or arguments.vararg or arguments.kwarg:
        return ""
    value = body[0].value
    return names[0] if isinstance(value, ast.Name) and value.id == names[0] else ""


def _calls(
    migration: Migration, view: FileView, function: ast.FunctionDef, parameter: str
) -> list[tuple[ast.Call, ast.expr]]:
    """The calls of a function with what each hands in; none where it is mentioned in any other way."""
    found: list[tuple[ast.Call, ast.expr]] = []
    for other in migration.program.views_with(function.name):
        mentions = [n for n in other.nodes(ast.Name) if n.id == function.name]
        if other is not view or any(n.attr == function.name for n in other.nodes(ast.Attribute)):
            return []
        for mention in mentions:
            call = other.parents[mention]
            if not isinstance(call, ast.Call) or call.func is not mention:
                return []
            given = [*call.args, *(keyword.value for keyword in call.keywords if keyword.arg == parameter)]
            if len(given) != 1 or isinstance(given[0], ast.Starred) or len(call.args) + len(call.keywords) != 1:
                return []
            found.append((call, given[0]))
    return found


def _without(view: FileView, function: ast.FunctionDef) -> Patch:
    """A function with the blank lines behind it, or in front of it at the end of a file."""
    block, place = view.block_of(function)
    start, end = view.line_start(function), view.line_end(function)
    text = view.source.text
    if place + 1 < len(block):
        while text[end : end + 1] in ("\n", "\r"):
            end += 1
    return Patch(view.path, start, end, (), PASSED_THROUGH)


def _argument_alone(view: FileView, call: ast.Call, argument: ast.expr) -> Patch:
    kept = view.keep(argument)
    return view.replace(call, [kept] if isinstance(argument, _SIMPLE) else ["(", kept, ")"], PASSED_THROUGH)
