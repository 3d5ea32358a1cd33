"""Calls that a test of the rank does not part: ranks that do not come to the one come to the same call in the other branch."""

from __future__ import annotations

import ast
from collections.abc import Sequence

from .backwards import is_trained_on_both
from .file import File


def is_made_on_both(file: File, test: ast.If, call: ast.AST) -> bool:
    """Whether both branches of a test surely make a call of the same function, or train by one."""
    if not isinstance(call, ast.Call) or not test.orelse:
        return False
    branches = [_calls(test.body), _calls(test.orelse)]
    if any(call in calls for calls in branches) and all(_reached(file, calls, call) for calls in branches):
        return True
    return is_trained_on_both(file, test, call)


def _calls(branch: Sequence[ast.stmt]) -> list[ast.Call]:
    """The calls that a branch surely makes: no further test, loop or function stands around them."""
    found: list[ast.Call] = []
    pending: list[ast.AST] = list(branch)
    while pending:
        node = pending.pop()
        if isinstance(node, (ast.With, ast.AsyncWith)):
            pending += [*node.items, *node.body]
        elif isinstance(node, (ast.Expr, ast.Assign, ast.AugAssign, ast.AnnAssign, ast.Return)) or not isinstance(node, ast.stmt):
            found += [node] if isinstance(node, ast.Call) else []
            pending += [] if isinstance(node, (ast.IfExp, ast.BoolOp, ast.Lambda)) else ast.iter_child_nodes(node)
    return found


def _reached(file: File, calls: Sequence[ast.Call], call: ast.Call) -> bool:
    functions, text = set(file.program.callees(file, call)), ast.unparse(call.func)
    return any(ast.unparse(n.func) == text or functions & set(file.program.callees(file, n)) for n in calls)
