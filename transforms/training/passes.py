"""Where forward and backward passes run: in statements, and in the functions of the repository that they call."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator

from ..analysis.symbols import canonical
from ..analysis.values import Derived, Wrapped
from ..groups import Group
from ..migration import Migration
from ..view import FileView

FORWARD, BACKWARD = "forward", "backward"
BACKWARD_NAMES = frozenset({"backward", "manual_backward", "training_backward", "_backward"})
_DEEPEST = 8


def passes_in(migration: Migration, view: FileView, nodes: Iterable[ast.AST], group: Group | None) -> frozenset[str]:
    """``forward`` of a model of the group and ``backward`` of anything, as far as statements run them."""
    found: set[str] = set()
    _collect(migration, view, nodes, group, found, set(), 0)
    return frozenset(found)


def _collect(
    migration: Migration,
    view: FileView,
    nodes: Iterable[ast.AST],
    group: Group | None,
    found: set[str],
    seen: set[object],
    depth: int,
) -> None:
    for call in calls_in(nodes):
        name = called_name(call)
        if name in BACKWARD_NAMES:
            found.add(BACKWARD)
        if is_model(view, call.func, group) or (
            name == "forward" and isinstance(call.func, ast.Attribute) and is_model(view, call.func.value, group)
        ):
            found.add(FORWARD)
            continue
        if depth >= _DEEPEST:
            continue
        for callee in migration.program.callees(view, call):
            if callee not in seen:
                seen.add(callee)
                inner, node = migration.program.function_node(callee)
                body = [node.body] if isinstance(node, ast.Lambda) else getattr(node, "body", [])
                _collect(migration, inner, body, group, found, seen, depth + 1)


def calls_named(migration: Migration, view: FileView, nodes: Iterable[ast.AST], names: frozenset[str]) -> bool:
    """Whether statements, or the functions of the repository that they call, call anything of these names."""
    seen: set[object] = set()
    pending: list[tuple[FileView, Iterable[ast.AST]]] = [(view, nodes)]
    while pending:
        current, statements = pending.pop()
        for call in calls_in(statements):
            if called_name(call) in names:
                return True
            for callee in migration.program.callees(current, call):
                if callee not in seen:
                    seen.add(callee)
                    inner, node = migration.program.function_node(callee)
                    body = getattr(node, "body", [])
                    pending.append((inner, body if isinstance(body, list) else [body]))
    return False


def is_model(view: FileView, node: ast.expr, group: Group | None) -> bool:
    """Whether an expression is surely a wrapped model (of the group, if one is given) at least on some path."""
    for value in view.values(node):
        if isinstance(value, Wrapped) and (group is None or any(wrap.value == value for wrap in group.wraps)):
            return True
    return False


def calls_in(nodes: Iterable[ast.AST]) -> Iterator[ast.Call]:
    """The calls that statements make themselves, in no particular order; bodies of nested functions left out."""
    pending = list(nodes)
    while pending:
        node = pending.pop()
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)):
            continue
        if isinstance(node, ast.Call):
            yield node
        pending.extend(ast.iter_child_nodes(node))


def called_name(call: ast.Call) -> str:
    """Last component of what is called."""
    function = call.func
    if isinstance(function, ast.Attribute):
        return function.attr
    return function.id if isinstance(function, ast.Name) else ""


def outside_name(view: FileView, node: ast.expr) -> str | None:
    """The canonical name of the outside symbol that an expression names, also where it stands to be called."""
    name = view.external(node)
    if name is None and isinstance(node, ast.Attribute):
        owner = outside_name(view, node.value)
        name = canonical(f"{owner}.{node.attr}") if owner else None
    return name


def leaves_early(body: Iterable[ast.stmt]) -> bool:
    """Whether control may leave a block before its end by a statement of its own."""
    return any(_leaves(statement, in_loop=False) for statement in body)


def _leaves(node: ast.AST, in_loop: bool) -> bool:
    if isinstance(node, (ast.Return, ast.Raise, ast.Yield, ast.YieldFrom, ast.Await)):
        return True
    if isinstance(node, (ast.Break, ast.Continue)):
        return not in_loop
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)):
        return False
    inside = in_loop or isinstance(node, (ast.For, ast.AsyncFor, ast.While))
    return any(_leaves(child, inside) for child in ast.iter_child_nodes(node))


def has_switch(view: FileView, statement: ast.AST) -> bool:
    """Whether a statement is a block under a ``no_sync`` context of its own, on some way at least."""
    return isinstance(statement, ast.With) and any(holds_no_sync(view, i.context_expr) for i in statement.items)


def other_backward(migration: Migration, view: FileView, block: ast.With, group: Group | None) -> bool:
    """Whether backward passes of the group run outside of such blocks, and would see what the block has left set.

    Those of the block's own function count, and those of others that run a forward of the model as well.
    """
    scope = view.function(block) or view.tree
    if _free_backward(view, getattr(scope, "body", [])):
        return True
    for other in migration.views():
        for function in other.nodes(ast.FunctionDef, ast.AsyncFunctionDef):
            if function is scope:
                continue
            if _free_backward(other, function.body):
                calls = calls_in(function.body)
                if any(is_model(other, call.func, group) for call in calls):
                    return True
    return False


def _free_backward(view: FileView, statements: Iterable[ast.AST]) -> bool:
    """Whether statements run a backward outside of blocks with a switch; nested functions left out."""
    pending = list(statements)
    while pending:
        node = pending.pop()
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)):
            continue
        if has_switch(view, node):
            continue
        if isinstance(node, ast.Call) and called_name(node) in BACKWARD_NAMES:
            return True
        pending.extend(ast.iter_child_nodes(node))
    return False


def gives_windows_up(view: FileView, node: ast.AST) -> bool:
    """Whether the loop around a node skips ahead when a loss or gradient is not finite."""
    loop = next((a for a in view.ancestors(node) if isinstance(a, (ast.For, ast.AsyncFor, ast.While))), None)
    for branch in ast.walk(loop) if loop is not None else ():
        if isinstance(branch, ast.If) and isinstance(branch.body[-1], (ast.Continue, ast.Break, ast.Return)):
            names = {called_name(call) for call in calls_in([branch.test])}
            if names & {"isnan", "isinf", "isfinite"}:
                return True
    return False


def holds_no_sync(view: FileView, node: ast.AST) -> bool:
    """Whether an expression may be a ``no_sync`` context (or the method that gives one)."""
    return any(isinstance(value, Derived) and value.kind == "no_sync" for value in view.values(node))


def reduces_by_hand(view: FileView, node: ast.AST) -> bool:
    """Whether the function around a place reduces gradients itself: ``dist.all_reduce(p.grad)``."""
    return any(
        "reduce" in called_name(call)
        and any(isinstance(n, ast.Attribute) and n.attr == "grad" for a in call.args for n in ast.walk(a))
        for call in ast.walk(view.function(node) or view.tree)
        if isinstance(call, ast.Call)
    )
