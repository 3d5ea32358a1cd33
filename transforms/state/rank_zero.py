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
    statement = view.statement(node)
    function = view.function(node)
    value = getattr(statement, "value", None)
    held = value is node or (isinstance(value, ast.Dict) and node in value.values)
    if function is None or not isinstance(statement, ast.Assign) or not held or len(statement.targets) != 1:
        return False
    target = statement.targets[0]
    return isinstance(target, ast.Name) and _rank_zero_alone_uses(finder, view, function, target.id, depth)


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
        for use in uses
    )


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
