"""Local variables that existed only for what is gone: their assignments go, too."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from typing import TypeGuard

from ..analysis.trees import children, walk
from ..text.edits import apply_edits
from ..text.patches import Patch, flatten
from ..view import FileView
from .harmless import is_harmless

Function = ast.FunctionDef | ast.AsyncFunctionDef
_WHY = "it served something that is gone"


def leftovers(view: FileView, patches: Sequence[Patch]) -> list[Patch]:
    """Removes the assignments of local names that were read before the patches and no longer are.

    Only whole statements and whole ``if`` chains that do nothing else go; where anything else might happen in
    them they stay.
    """
    removed: list[Patch] = []
    while True:
        known = {(patch.start, patch.end) for patch in removed}
        more = [p for p in _unread(view, [*patches, *removed]) if (p.start, p.end) not in known]
        if not more:
            return removed
        removed.extend(more)


def _unread(view: FileView, patches: Sequence[Patch]) -> list[Patch]:
    try:
        after = ast.parse(apply_edits(view.source, flatten(view.source, patches)))
    except SyntaxError:
        return []
    functions = functions_by_name(after)
    touched = [patch.start for patch in patches]
    found: list[Patch] = []
    for name, before in functions_by_name(view.tree).items():
        start, end = view.source.span(before)
        if name not in functions or not any(start <= place < end for place in touched):
            continue
        nodes = walk(functions[name])
        kept = {node.id for node in nodes if isinstance(node, ast.Name) and _is_stored(node)}
        filled = {node.value for node in nodes if _is_item_stored(node)}
        read = {node.id for node in nodes if isinstance(node, ast.Name) and not _is_stored(node) and node not in filled}
        unread = kept - (read & _read_elsewhere(functions[name]))
        for local in sorted(_read_locals(before) & unread):
            found.extend(_assignments(view, before, local, patches))
    return found


def functions_by_name(tree: ast.Module) -> dict[str, Function]:
    """The functions of a file by their full names; those that share one are left out."""
    found: dict[str, list[Function]] = {}

    def collect(node: ast.AST, prefix: str) -> None:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef)):
                found.setdefault(f"{prefix}.{child.name}", []).append(child)
                collect(child, f"{prefix}.{child.name}")
            else:
                collect(child, f"{prefix}.{child.name}" if isinstance(child, ast.ClassDef) else prefix)

    collect(tree, "")
    return {name: functions[0] for name, functions in found.items() if len(functions) == 1}


def _is_stored(name: ast.Name) -> bool:
    return isinstance(name.ctx, ast.Store)


def _is_item_stored(node: ast.AST) -> TypeGuard[ast.Subscript]:
    """``options["key"] = …``, which reads nothing of what it fills."""
    return isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store)


def _read_locals(function: Function) -> set[str]:
    """Names that are read in a function, not only to give them another value, and are surely local to it."""
    nodes = walk(function)
    outer = {name for node in nodes if isinstance(node, (ast.Global, ast.Nonlocal)) for name in node.names}
    read = {node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)}
    return (read & _read_elsewhere(function)) - outer


def _read_elsewhere(function: Function) -> set[str]:
    """Names that are read not only to give them another value, as in ``if unused is None: unused = frozen``."""
    found: set[str] = set()
    pending: list[tuple[ast.AST, frozenset[str]]] = [(function, frozenset())]
    while pending:
        node, own = pending.pop()
        if isinstance(node, ast.Name) and not _is_stored(node) and node.id not in own:
            found.add(node.id)
        if isinstance(node, (ast.If, ast.Assign)):
            own |= _bound_alone(node)
        pending += [(child, own) for child in children(node)]
    return found


def _bound_alone(statement: ast.stmt) -> set[str]:
    """The name that a statement, or each one on either side of a condition, gives a value; empty if it does more."""
    if isinstance(statement, ast.If):
        return set.intersection(*map(_bound_alone, [*statement.body, *statement.orelse]))
    targets = statement.targets if isinstance(statement, ast.Assign) else []
    return {target.id for target in targets if isinstance(target, ast.Name) and len(targets) == 1}


def _assignments(view: FileView, function: Function, name: str, patches: Sequence[Patch]) -> list[Patch]:
    """Deletions of all assignments of a name, none where one of them does something else as well."""
    statements: list[ast.stmt] = []
    for mention in ast.walk(function):
        if not isinstance(mention, ast.Name) or mention.id != name:
            continue
        if isinstance(mention.ctx, ast.Load) and not _is_item_stored(view.parents[mention]):
            continue
        statement = _outermost(view, view.statement(mention), name)
        if statement is None or view.function(mention) is not function:
            return []
        if statement not in statements:
            statements.append(statement)
    if any(all(s in statements for s in view.block_of(statement)[0]) for statement in statements):
        return []
    if not _is_made_here(statements):
        return []
    gone = [view.delete(statement, _WHY) for statement in statements]
    return [] if any(_is_inserted_at(patches, patch) for patch in gone) else gone


def _is_made_here(statements: Sequence[ast.stmt]) -> bool:
    """Whether what items are put into is a new dictionary, so that nothing else sees them."""
    nodes = [node for statement in statements for node in ast.walk(statement)]
    if not any(_is_item_stored(node) for node in nodes):
        return True
    bindings = [node for node in nodes if isinstance(node, ast.Assign) and not _is_item_stored(node.targets[0])]
    return bool(bindings) and all(isinstance(binding.value, ast.Dict) for binding in bindings)


def _is_inserted_at(patches: Sequence[Patch], deletion: Patch) -> bool:
    """Whether new lines come where a deletion begins or ends, and would be lost with it."""
    return any(p.start == p.end and deletion.start <= p.start <= deletion.end for p in patches)


def _outermost(view: FileView, statement: ast.stmt, name: str) -> ast.stmt | None:
    """The assignment, or the largest ``if`` around it that holds nothing but such assignments."""
    if not _only_assigns(view, statement, name) or not view.stands_alone(statement):
        return None
    while isinstance(parent := view.parents[statement], ast.If) and _only_assigns(view, parent, name):
        statement = parent
    return statement


def _only_assigns(view: FileView, statement: ast.stmt, name: str) -> bool:
    if isinstance(statement, ast.If):
        return is_harmless(view, statement.test) and all(
            _only_assigns(view, inner, name) for inner in [*statement.body, *statement.orelse]
        )
    if isinstance(statement, ast.AugAssign):
        return isinstance(statement.target, ast.Name) and statement.target.id == name and is_harmless(view, statement.value)
    if not isinstance(statement, ast.Assign) or len(statement.targets) != 1:
        return False
    target = statement.targets[0]
    if _is_item_stored(target) and is_harmless(view, target.slice):
        target = target.value
    return isinstance(target, ast.Name) and target.id == name and is_harmless(view, statement.value)
