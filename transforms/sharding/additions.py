"""Entries that a dictionary of arguments gets right in front of the call that it is spread in."""

from __future__ import annotations

import ast
from dataclasses import dataclass

from ..analysis.scopes import dotted_path
from ..leaving.harmless import is_harmless
from ..view import FileView


@dataclass
class Addition:
    """A statement that does nothing but put entries into a dictionary."""

    statement: ast.stmt
    names: set[str]


def last_additions(view: FileView, spread: ast.expr) -> list[Addition]:
    """The additions in the block of a call that only the call can see: nothing behind it reads the dictionary."""
    path, statement = dotted_path(spread), view.statement(spread)
    if not isinstance(spread, ast.Name) or path is None or _is_read_later(view, statement, path):
        return []
    if _is_the_callers(view, spread):
        return []
    block, place = view.block_of(statement)
    found: list[Addition] = []
    for earlier in reversed(block[:place]):
        names = _put_in(view, earlier, path)
        if names and view.stands_alone(earlier):
            found.append(Addition(earlier, names))
        elif path in view.names_in(earlier):
            break
    return found


def _is_the_callers(view: FileView, name: ast.Name) -> bool:
    """Whether a dictionary may be one that a caller has handed in, and looks at afterwards."""
    function = view.function(name)
    if function is None:
        return True
    arguments = function.args
    parameters = {a.arg for a in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)}
    bound = [n for n in ast.walk(function) if isinstance(n, ast.Name) and n.id == name.id and isinstance(n.ctx, ast.Store)]
    given = [getattr(view.parents[store], "value", None) for store in bound]
    is_keywords = arguments.kwarg is not None and arguments.kwarg.arg == name.id
    made = all(isinstance(value, (ast.Dict, ast.Call, ast.Subscript)) for value in given) and (bool(given) or is_keywords)
    return name.id in parameters or not made


def entry(statement: ast.stmt, path: str) -> tuple[str, ast.expr] | None:
    """Key and value of ``kwargs["name"] = value`` or ``kwargs.setdefault("name", value)``."""
    if isinstance(statement, ast.Assign) and len(statement.targets) == 1:
        target = statement.targets[0]
        if isinstance(target, ast.Subscript) and dotted_path(target.value) == path:
            return _named(target.slice, statement.value)
    call = statement.value if isinstance(statement, ast.Expr) else None
    if isinstance(call, ast.Call) and dotted_path(call.func) == f"{path}.setdefault" and len(call.args) == 2:
        return _named(call.args[0], call.args[1])
    return None


def _named(key: ast.expr, value: ast.expr) -> tuple[str, ast.expr] | None:
    return (key.value, value) if isinstance(key, ast.Constant) and isinstance(key.value, str) else None


def _put_in(view: FileView, statement: ast.stmt, path: str) -> set[str]:
    """Names of the entries that a statement, or a condition around such statements, adds; none if it does more."""
    if isinstance(statement, ast.If):
        inner = [_put_in(view, child, path) for child in statement.body]
        whole = not statement.orelse and all(inner) and is_harmless(view, statement.test)
        return set().union(*inner) if whole else set()
    added = entry(statement, path)
    return {added[0]} if added is not None and is_harmless(view, added[1]) else set()


def _is_read_later(view: FileView, statement: ast.stmt, root: str) -> bool:
    """Whether a name is mentioned behind a statement, or in another round of a loop around it."""
    while True:
        block, place = view.block_of(statement)
        if any(root in view.names_in(later) for later in block[place + 1 :]):
            return True
        parent = view.parents[statement]
        if isinstance(parent, (ast.For, ast.While, ast.AsyncFor)):
            return True
        if not isinstance(parent, ast.stmt) or isinstance(parent, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            return not isinstance(parent, (ast.FunctionDef, ast.AsyncFunctionDef))
        statement = parent
