"""Functions of a repository that take torch.nn.DataParallel off, which generated code uses as the files themselves do."""

from __future__ import annotations

import ast

from ..analysis.scopes import dotted_path
from ..analysis.symbols import DATA_PARALLEL
from ..introspection.type_tests import type_test
from ..view import FileView


def unwrapping_helper(view: FileView, node: ast.AST) -> str | None:
    """The name under which a file calls such a function on a model, where that is no name of the function around ``node``."""
    function = view.function(node)
    local = set(view.stores(function)) if function is not None else set[str]()
    for call in view.nodes(ast.Call):
        if not isinstance(call.func, ast.Name) or call.func.id in local or len(call.args) != 1 or call.keywords:
            continue
        callees = view.program.callees(view, call)
        if len(callees) == 1 and _only_unwraps(*view.program.function_node(callees[0])):
            return call.func.id
    return None


def _only_unwraps(view: FileView, function: ast.AST) -> bool:
    """``return model.module if isinstance(model, DataParallel) else model``, of the only argument of a function."""
    if not isinstance(function, ast.FunctionDef) or len(function.args.args) != 1 or function.decorator_list:
        return False
    last = function.body[-1]
    choice = last.value if isinstance(last, ast.Return) else None
    is_alone = all(isinstance(part, ast.Expr) and isinstance(part.value, ast.Constant) for part in function.body[:-1])
    if not isinstance(choice, ast.IfExp) or not is_alone:
        return False
    given, asked = function.args.args[0].arg, type_test(view, choice.test)
    is_choice = dotted_path(choice.body) == f"{given}.module" and dotted_path(choice.orelse) == given
    return is_choice and asked is not None and dotted_path(asked.subject) == given and bool(asked.names & DATA_PARALLEL)
