"""Values that rank 0 alone goes on to use, so that the other ranks need not have them."""

from __future__ import annotations

import ast

from ..ranks.guards import GuardFinder
from ..view import FileView


def rank_zero_alone_reads(finder: GuardFinder, view: FileView, node: ast.expr, depth: int = 0) -> bool:
    """Whether a value is bound to a local name, or put into a dict that is, which rank 0 alone goes on to read.

    It may be one side of a choice (``model.module.state_dict() if wrapped else model.state_dict()``).
    """
    while isinstance(parent := view.parents[node], ast.IfExp) and node is not parent.test:
        node = parent
    function, holder = view.function(node), _holder(view, node)
    return function is not None and bool(holder) and _rank_zero_alone_uses(finder, view, function, holder, depth)


def _holder(view: FileView, node: ast.expr) -> str:
    """The local name that a value is bound to, by itself or in a dict."""
    statement = view.statement(node)
    value = getattr(statement, "value", None)
    held = value is node or (isinstance(value, ast.Dict) and node in value.values)
    if not isinstance(statement, ast.Assign) or not held or len(statement.targets) != 1:
        return ""
    target = statement.targets[0]
    return target.id if isinstance(target, ast.Name) else ""


def is_handed_to_rank_zero(finder: GuardFinder, view: FileView, node: ast.expr) -> bool:
    """Whether a value, or a dict that it is put into, is handed to a function of which rank 0 alone goes on to use it."""
    return _handed_to_rank_zero(finder, view, node, 0)


def _rank_zero_alone_uses(finder: GuardFinder, view: FileView, function: ast.AST, name: str, depth: int) -> bool:
    """Whether every use of a local name is behind a guard for rank 0, here or in the function it is handed to."""
    uses = [
        node
        for node in ast.walk(function)
        if isinstance(node, ast.Name) and node.id == name and isinstance(node.ctx, ast.Load)
    ]
    return bool(uses) and all(
        any(finder.passes_only_rank_zero(guard) for guard in finder.around(view, use))
        or _handed_to_rank_zero(finder, view, use, depth)
        or _is_put_away(finder, view, function, use, depth)
        for use in uses
    )


def _is_put_away(finder: GuardFinder, view: FileView, function: ast.AST, use: ast.Name, depth: int) -> bool:
    """Whether a use puts a value into a dict of another name, which rank 0 alone goes on to read."""
    holder = _holder(view, use) if isinstance(view.parents[use], ast.Dict) else ""
    return bool(holder) and holder != use.id and depth <= 2 and _rank_zero_alone_uses(finder, view, function, holder, depth + 1)


def _handed_to_rank_zero(finder: GuardFinder, view: FileView, use: ast.expr, depth: int) -> bool:
    while isinstance(call := view.parents[use], ast.Dict) and use in call.values:
        use = call
    if not isinstance(call, ast.Call) or use not in call.args or depth > 2:
        return False
    callees = finder.program.callees(view, call)
    for callee in callees:
        owner, function = finder.program.function_node(callee)
        arguments = getattr(function, "args", None)
        if not isinstance(arguments, ast.arguments):
            return False
        names = [a.arg for a in (*arguments.posonlyargs, *arguments.args)]
        place = call.args.index(use) + (1 if names[:1] == ["self"] else 0)
        name = names[place] if place < len(names) else arguments.vararg.arg if arguments.vararg else ""
        if not name or not _rank_zero_alone_uses(finder, owner, function, name, depth + 1):
            return False
    return bool(callees)
