"""What ranks would be left with if they ran a block that they did not run before, and would go on to use."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Sequence

from ..view import FileView
from .guards import Guard, GuardFinder


def outliving(
    finder: GuardFinder, view: FileView, guard: Guard, statements: Sequence[ast.stmt], rest: Sequence[ast.stmt]
) -> str:
    """A reason why all ranks cannot run statements, as far as it is about what they leave behind; empty where none is."""
    bound = bound_in(statements)
    for node in (inner for statement in statements for inner in ast.walk(statement)):
        if isinstance(node, (ast.Attribute, ast.Subscript)) and isinstance(node.ctx, ast.Store):
            if not view.names_in(_root(node)) <= bound or not isinstance(_root(node), ast.Name):
                return f"`{view.text(node)}` would change on every rank"
    if guard.kind == "exit":
        return "" if _is_ignored(finder, view, guard) else "its callers use what it returns on the other ranks"
    inside = {node for statement in (*statements, *rest) for node in ast.walk(statement)}
    for node in ast.walk(view.function(guard.statement) or view.tree):
        if not isinstance(node, ast.Name) or node.id not in bound or not isinstance(node.ctx, ast.Load):
            continue
        if node not in inside and not finder.around(view, node) and not _is_set_before(view, guard, node):
            return f"`{node.id}` is used on all ranks, and the others would have a value of their own"
    return ""


def bound_in(statements: Iterable[ast.AST]) -> set[str]:
    """The names that statements bind, at any depth."""
    return {
        node.id
        for statement in statements
        for node in ast.walk(statement)
        if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load)
    }


def _root(node: ast.expr) -> ast.expr:
    while isinstance(node, (ast.Attribute, ast.Subscript)):
        node = node.value
    return node


def _is_set_before(view: FileView, guard: Guard, use: ast.Name) -> bool:
    """Whether a use always finds what was assigned between the guard and itself."""
    place, guarded = view.source.span(use)[0], view.source.span(guard.statement)[0]

    def counts(statement: ast.AST) -> bool:
        return guarded < view.source.span(statement)[0] or place < guarded

    child: ast.AST = use
    for ancestor in view.ancestors(use):
        if isinstance(ancestor, (ast.For, ast.AsyncFor)) and child is not ancestor.iter and counts(ancestor):
            if use.id in view.names_in(ancestor.target):
                return True
        if isinstance(ancestor, (ast.ListComp, ast.SetComp, ast.GeneratorExp, ast.DictComp)):
            if any(use.id in view.names_in(generator.target) for generator in ancestor.generators):
                return True
        if isinstance(child, ast.stmt):
            block, index = view.block_of(child)
            if any(_binds(statement, use.id) and counts(statement) for statement in block[:index]):
                return True
        if isinstance(ancestor, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
            break
        child = ancestor
    return False


def _binds(statement: ast.stmt, name: str) -> bool:
    """Whether a statement binds a name whenever it runs."""
    if isinstance(statement, (ast.With, ast.AsyncWith)):
        return any(_binds(inner, name) for inner in statement.body)
    targets = statement.targets if isinstance(statement, ast.Assign) else []
    return any(isinstance(n, ast.Name) and n.id == name for target in targets for n in ast.walk(target))


def _is_ignored(finder: GuardFinder, view: FileView, guard: Guard) -> bool:
    """Whether what the function gives the ranks that leave early stays the same, or is of no matter to its callers."""
    assert isinstance(guard.statement, ast.If) and isinstance(guard.statement.body[0], ast.Return)
    returned = guard.statement.body[0].value
    if returned is None or isinstance(returned, ast.Constant):
        return True
    function = view.function(guard.statement)
    callers = finder.program.callers(view, function) if function is not None else []
    return bool(callers) and all(isinstance(caller.parents[call], ast.Expr) for caller, call in callers)
