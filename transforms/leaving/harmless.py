"""Expressions that may be left out, because evaluating them cannot be noticed."""

from __future__ import annotations

import ast

from ..analysis.symbols import is_old
from ..view import FileView

_TELLS = frozenset(
    {
        "is_available", "current_device", "device_count", "get_rank", "get_world_size", "device", "getenv", "get",
        "int", "str", "bool", "len", "type", "isinstance", "getattr", "hasattr", "any", "all", "set", "tuple", "list",
        "partial", "modules", "named_modules", "children", "named_children", "parameters", "named_parameters", "numel", "sum",
        "issubclass", "callable", "startswith", "endswith",
    }
)  # fmt: skip
"""Functions that only tell or make something."""

_DEEPEST = 3


def is_harmless(view: FileView, node: ast.AST, depth: int = 0) -> bool:
    """Whether leaving out an expression cannot be noticed."""
    for inner in ast.walk(node):
        if isinstance(inner, (ast.Await, ast.Yield, ast.YieldFrom, ast.NamedExpr)):
            return False
        if isinstance(inner, ast.Call) and not _only_tells(view, inner, depth):
            return False
    return True


def _only_tells(view: FileView, call: ast.Call, depth: int) -> bool:
    function = call.func
    called = function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")
    if called in _TELLS or called.startswith(("is_", "has_")) or _compares_versions(call, called):
        return True
    name = view.external(function)
    if name is not None and is_old(name) and _makes_setting(name):
        return True
    callees = view.program.callees(view, call)
    return bool(callees) and depth < _DEEPEST and all(_returns_at_once(view, callee, depth) for callee in callees)


def _compares_versions(call: ast.Call, called: str) -> bool:
    """``check_version(torch.__version__, "1.11.0")``: a comparison by its name, asked for nothing but its answer."""
    given = [argument for argument in call.args if not isinstance(argument, ast.Constant)]
    versions = all(isinstance(argument, ast.Attribute) and argument.attr == "__version__" for argument in given)
    return "version" in called and bool(given) and versions and not call.keywords


def _makes_setting(name: str) -> bool:
    """``FullStateDictConfig(…)``, ``ModuleWrapPolicy(…)``: plain objects that wait to be handed on."""
    return name.endswith(("Config", "Policy", ".MixedPrecision", ".CPUOffload"))


def _returns_at_once(view: FileView, callee: object, depth: int) -> bool:
    """Whether a function of the repository is a single harmless expression, a docstring aside."""
    inner, node = view.program.function_node(callee)  # pyright: ignore[reportArgumentType]
    if not isinstance(node, ast.FunctionDef) or node.decorator_list:
        return False
    body = [s for s in node.body if not (isinstance(s, ast.Expr) and isinstance(s.value, ast.Constant))]
    result = body[0] if len(body) == 1 else None
    return isinstance(result, ast.Return) and (result.value is None or is_harmless(inner, result.value, depth + 1))
