"""``with enable_wrap(…):`` blocks, which say how the calls of ``wrap`` inside them wrap."""

from __future__ import annotations

import ast

from ..analysis.symbols import ENABLE_WRAP, WRAP
from ..view import FileView


def is_wrap(view: FileView, node: ast.AST) -> bool:
    """Whether a node is a call of ``wrap``."""
    return isinstance(node, ast.Call) and view.external(node.func) == WRAP


def settings_of(view: FileView, call: ast.Call) -> ast.Call | None:
    """The ``enable_wrap`` call of the block in which a call of ``wrap`` surely runs.

    None for any other call, and where no block is written around it: a function, a lambda or a generator that is
    kept may run in any block, or in none.
    """
    if not is_wrap(view, call):
        return None
    child: ast.AST = call
    for ancestor in view.ancestors(call):
        if isinstance(ancestor, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef)):
            return None
        if isinstance(ancestor, ast.GeneratorExp) and not isinstance(view.parents[ancestor], ast.Call):
            return None
        if isinstance(ancestor, ast.With) and child in ancestor.body:
            for item in ancestor.items:
                if is_enable_wrap(view, item.context_expr):
                    assert isinstance(item.context_expr, ast.Call)
                    return item.context_expr
        child = ancestor
    return None


def is_enable_wrap(view: FileView, node: ast.AST) -> bool:
    """Whether a node is a call of ``enable_wrap``."""
    return isinstance(node, ast.Call) and view.external(node.func) == ENABLE_WRAP


def wraps_in(view: FileView, settings: ast.Call) -> list[ast.Call]:
    """The calls of ``wrap`` that take their arguments from one ``enable_wrap`` call, in the order of the text."""
    calls = [node for node in ast.walk(view.statement(settings)) if isinstance(node, ast.Call)]
    found = [call for call in calls if settings_of(view, call) is settings]
    return sorted(found, key=lambda call: (call.lineno, call.col_offset))


def inner_wrap(view: FileView, call: ast.Call) -> ast.Call | None:
    """``wrap(x)`` in ``wrap(wrap(x))``, which FSDP1 programs write so that the root frees its parameters, too."""
    model = model_of(call)
    return model if isinstance(model, ast.Call) and is_wrap(view, model) else None


def outer_wrap(view: FileView, call: ast.Call) -> ast.Call | None:
    """The call of ``wrap`` that is given the result of this one."""
    parent = view.parents[call]
    if isinstance(parent, ast.Call) and is_wrap(view, parent) and model_of(parent) is call:
        return parent
    return None


def model_of(call: ast.Call) -> ast.expr | None:
    """What a call of ``wrap`` is given."""
    return call.args[0] if call.args else next((k.value for k in call.keywords if k.arg == "module"), None)
