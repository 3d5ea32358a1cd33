"""A function under a decorator for the main process: all ranks gather state, and the rest stays behind the decorator."""

from __future__ import annotations

import ast
from dataclasses import dataclass

from ..migration import Migration
from ..ranks.guards import GuardFinder
from ..rule import Outcome
from ..text.patches import Old, Patch
from ..view import FileView
from .reads import last_name
from .whole_states import gather_here, gather_into

_WHY = "all ranks gather, and the main process goes on"


@dataclass(frozen=True, eq=False)
class Split:
    """A function whose body can become one of its own, without arguments, that has the decorator instead."""

    function: ast.FunctionDef
    rest: list[ast.stmt]
    """What stays behind the decorator."""
    kept: bool
    """Whether the statement that reads the state stands in front of the rest already."""


def split_of(finder: GuardFinder, view: FileView, call: ast.Call) -> Split | None:
    """How a decorated function is split; None where its body cannot become a function without arguments."""
    function = view.function(call)
    if not isinstance(function, ast.FunctionDef) or len(function.decorator_list) != 1:
        return None
    (decorator,) = function.decorator_list
    if not isinstance(decorator, (ast.Name, ast.Attribute)) or not _takes_anything(finder, view, decorator):
        return None
    body = function.body[1:] if ast.get_docstring(function) is not None else function.body
    if function.lineno != decorator.lineno + 1 or not body or not all(map(view.stands_alone, body)):
        return None
    first = body[0]
    kept = isinstance(first, ast.Assign) and first.value is call and all(isinstance(t, ast.Name) for t in first.targets)
    rest = body[1:] if kept else body
    if not rest or not _can_be_nested(view, function, rest):
        return None
    return Split(function, rest, kept)


def _takes_anything(finder: GuardFinder, view: FileView, decorator: ast.expr) -> bool:
    """Whether a decorator of the repository passes on whatever arguments a function is called with, none as well."""
    wrappers = [guard.view.function(guard.statement) for guard in finder.inside_decorator(view, decorator)]
    return bool(wrappers) and all(
        isinstance(wrapper, ast.FunctionDef)
        and wrapper.args.vararg is not None
        and not (*wrapper.args.posonlyargs, *wrapper.args.args)
        and not any(default is None for default in wrapper.args.kw_defaults)
        for wrapper in wrappers
    )


def _can_be_nested(view: FileView, function: ast.FunctionDef, rest: list[ast.stmt]) -> bool:
    """Whether statements mean the same in a function inside: no name of the one around them is bound, nothing yielded."""
    arguments = {a.arg for a in ast.walk(function.args) if isinstance(a, ast.arg)}
    outside = [statement for statement in function.body if statement not in rest]
    around = arguments | {n.id for s in outside for n in ast.walk(s) if isinstance(n, ast.Name)}
    for node in (node for statement in rest for node in ast.walk(statement)):
        if isinstance(node, (ast.Yield, ast.YieldFrom, ast.Await, ast.Global, ast.Nonlocal)):
            return False
        if isinstance(node, ast.Name) and (node.id == "super" or (not isinstance(node.ctx, ast.Load) and node.id in around)):
            return False
        if isinstance(node, (ast.Constant, ast.JoinedStr)) and "\n" in view.text(node) and _holds_lines(view.text(node)):
            return False
    return True


def _holds_lines(text: str) -> bool:
    """Whether a literal has lines of its own, which another indentation would change."""
    return '"""' in text or "'''" in text


def write_split(migration: Migration, view: FileView, call: ast.Call, split: Split, alone: bool, outcome: Outcome) -> None:
    """Adds the patches: the gathering, and the rest as a function under the decorator, which is called at once."""
    function, source = split.function, view.source
    first, last = split.rest[0], split.rest[-1]
    indent = view.indent(first)
    gathered: tuple[str | Old, ...] = ()
    if split.kept:
        gather_here(migration, view, call, alone, outcome)
    else:
        assert isinstance(call.func, ast.Attribute)
        name = view.free_name(call, f"{last_name(call.func.value)}_state_dict")
        gathered = gather_into(migration, view, call, alone, name, indent, outcome)
    write = view.free_name(call, "write")
    returns = any(isinstance(n, ast.Return) and n.value is not None for s in split.rest for n in ast.walk(s))
    decorator = view.text(function.decorator_list[0])
    start, end = view.line_start(first), view.line_end(last)
    line_break = "" if source.text[end - 1 : end] == "\n" else "\n"
    parts = (
        *gathered,
        f"\n{indent}@{decorator}\n{indent}def {write}():\n{indent}    ",
        Old(source.span(first)[0], end, indent + "    "),
        f"{line_break}\n{indent}{'return ' if returns else ''}{write}()\n",
    )
    outcome.patches.append(Patch(view.path, start, end, parts, _WHY))
    head = source.line_starts[function.lineno - 1]
    outcome.patches.append(Patch(view.path, view.line_start(function), head, (), _WHY))
