"""What callers hand in for the parameters of a function."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import TypeGuard

from .file import File


def given_for_parameter(file: File, node: ast.expr) -> Iterator[tuple[File, ast.expr]]:
    """What the callers of the function around a name hand in for it."""
    function = file.function(node)
    if not isinstance(node, ast.Name) or not isinstance(function, (ast.FunctionDef, ast.AsyncFunctionDef)):
        return
    for caller, call in file.program.callers(file, function):
        if (value := handed_in(file, node, node.id, call)) is not None:
            yield caller, value


def handed_in(file: File, place: ast.AST, name: str, call: ast.Call) -> ast.expr | None:
    """What a call hands in for a parameter of the function around a place."""
    function = file.function(place)
    if isinstance(function, ast.Lambda):
        return _argument_for(function, name, call, is_method=False)
    if not isinstance(function, (ast.FunctionDef, ast.AsyncFunctionDef)):
        return None
    return _argument_for(function, name, call, is_method=file.enclosing_class(function) is not None)


def is_left_out(file: File, node: ast.expr, call: ast.Call) -> bool:
    """Whether an expression begins with a parameter that a call of its function leaves at None: nothing works on it then."""
    while isinstance(node, (ast.Attribute, ast.Call, ast.Subscript)):
        node = node.func if isinstance(node, ast.Call) else node.value
    function = file.function(node)
    if not isinstance(node, ast.Name) or not isinstance(function, (ast.FunctionDef, ast.AsyncFunctionDef)):
        return False
    if any(isinstance(a, ast.Starred) for a in call.args) or any(keyword.arg is None for keyword in call.keywords):
        return False
    places = [*function.args.posonlyargs, *function.args.args]
    defaults = dict(zip(reversed(places), reversed(function.args.defaults), strict=False))
    defaults |= {a: d for a, d in zip(function.args.kwonlyargs, function.args.kw_defaults, strict=True) if d is not None}
    is_none = any(a.arg == node.id and isinstance(d, ast.Constant) and d.value is None for a, d in defaults.items())
    is_bound = any(file.function(binding) is function for binding in file.bindings.get(node.id, ()))
    return is_none and not is_bound and handed_in(file, node, node.id, call) is None


def handed_in_by_keywords(file: File, place: ast.AST, name: str, call: ast.Call) -> list[ast.expr] | None:
    """What a call hands in for the ``**name`` of the function around a place; None if some of it is out of sight."""
    function = file.function(place)
    if not isinstance(function, (ast.FunctionDef, ast.AsyncFunctionDef)) or function.args.kwarg is None:
        return None
    if function.args.kwarg.arg != name or any(keyword.arg is None for keyword in call.keywords):
        return None
    named = {a.arg for a in (*function.args.args, *function.args.kwonlyargs)}
    return [keyword.value for keyword in call.keywords if keyword.arg not in named]


def parameter_for(
    function: ast.FunctionDef | ast.AsyncFunctionDef, argument: ast.expr, call: ast.Call, is_method: bool
) -> str | None:
    """The parameter that an argument of a call is handed in for, if it has one of its own."""
    names = [a.arg for a in (*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs)]
    return next((name for name in names if _argument_for(function, name, call, is_method) is argument), None)


def _argument_for(
    function: ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda, name: str, call: ast.Call, is_method: bool
) -> ast.expr | None:
    """What a call hands in for a parameter; for ``self`` the object that the method is read off."""
    names = [a.arg for a in (*function.args.posonlyargs, *function.args.args)]
    given = list(call.args)
    if is_method and names and names[0] in ("self", "cls") and not isinstance(function, ast.Lambda):
        called = call.func.value if _is_read_off(call.func, function.name) else call.func
        if name == names[0] and called is call.func and not function.name.startswith("__") and function.name != "forward":
            return None  # the method was handed on by itself: what is called is no object with its attributes
        given.insert(0, called)
    unpacked = next((i for i, argument in enumerate(given) if isinstance(argument, ast.Starred)), len(given))
    if name in names and names.index(name) < unpacked:
        return given[names.index(name)]
    return next((keyword.value for keyword in call.keywords if keyword.arg == name), None)


def _is_read_off(called: ast.expr, method: str) -> TypeGuard[ast.Attribute]:
    """Whether what is called is an attribute of the object whose method runs; of ``self.net(x)`` the object is ``self.net``."""
    runs_object = method in ("forward", "__call__")
    return isinstance(called, ast.Attribute) and (called.attr == method or not runs_object)
