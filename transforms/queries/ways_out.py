"""How control leaves a run of statements other than by its end."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence

from .file import File

_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef)
_LOOPS = (ast.For, ast.AsyncFor, ast.While)
_WITHOUT_WORK = (ast.Name, ast.Constant)


def ways_out(statements: Sequence[ast.stmt]) -> list[ast.stmt]:
    """The ``return``, ``break`` and ``continue`` by which statements of one block are left."""
    return [leave for statement in statements for leave in _leaves(statement, in_loop=False)]


def is_caught_further_out(file: File, statement: ast.stmt) -> bool:
    """Whether the function may go on behind an exception in a statement."""
    for around in file.ancestors(statement):
        if isinstance(around, _FUNCTIONS):
            return False
        if isinstance(around, ast.Try) and around.handlers:
            return True
        if isinstance(around, ast.With) and any(_suppresses(item.context_expr) for item in around.items):
            return True
    return False


def _suppresses(context: ast.expr) -> bool:
    return isinstance(context, ast.Call) and ast.unparse(context.func).rpartition(".")[2] in ("suppress", "raises")


def gives_what_is_there(leave: ast.stmt) -> bool:
    """Whether nothing is computed for a way out: what a ``return`` gives is a name or a constant."""
    return not isinstance(leave, ast.Return) or leave.value is None or isinstance(leave.value, _WITHOUT_WORK)


def _leaves(node: ast.AST, in_loop: bool) -> Iterator[ast.stmt]:
    if isinstance(node, ast.Return) or (isinstance(node, (ast.Break, ast.Continue)) and not in_loop):
        yield node
    if isinstance(node, _FUNCTIONS):
        return
    for inner in ast.iter_child_nodes(node):
        is_body = isinstance(node, _LOOPS) and inner not in node.orelse
        yield from _leaves(inner, in_loop or is_body)
