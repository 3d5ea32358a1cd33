"""What a name stands for at a place, where one assignment of the same function says it."""

from __future__ import annotations

import ast
from dataclasses import dataclass

from .file import File


@dataclass(frozen=True)
class LocalValue:
    """The expression that a name was assigned, by which statement, and whether nothing but the asking place reads it."""

    value: ast.expr
    statement: ast.stmt
    read_once: bool


def local_value(file: File, name: ast.Name) -> LocalValue | None:
    """The last assignment of a name in its function, or else in its module, if it surely was made before the place."""
    scope = file.function(name) or file.tree
    if isinstance(scope, ast.Lambda):
        return None
    uses = _uses(file, scope, name.id)
    if scope is not file.tree and all(isinstance(use.ctx, ast.Load) for use in uses) and not _is_parameter(scope, name.id):
        return _module_value(file, name)
    statement, replaced = _last_assignment(file, uses, name)
    if statement is None or _is_parameter(scope, name.id):
        return None
    if file.function(statement) is not file.function(name):
        return None
    if not _dominates(file, statement, file.statement(name)):
        return None
    loads = [n for n in uses if isinstance(n.ctx, ast.Load) and n not in replaced]
    if isinstance(scope, ast.Module):
        loads += [n for n in file.names_by_id[name.id] if isinstance(n.ctx, ast.Load) and n not in loads]
    return LocalValue(statement.value, statement, read_once=loads == [name])


def _module_value(file: File, name: ast.Name) -> LocalValue | None:
    """What a name of the module is assigned once at its top, before any function runs that is called from elsewhere."""
    around = [scope for scope in file.ancestors(name) if isinstance(scope, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda))]
    inner = [use for scope in around[1:] for use in _uses(file, scope, name.id) if not isinstance(use.ctx, ast.Load)]
    uses = file.names_by_id[name.id]
    statement = _only_assignment(file, uses)
    if inner or statement is None or statement not in file.tree.body:
        return None
    if any(name.id in node.names for node in file.nodes(ast.Global, ast.Nonlocal)):
        return None
    loads = [use for use in uses if isinstance(use.ctx, ast.Load)]
    return LocalValue(statement.value, statement, read_once=loads == [name] and name.id.startswith("_"))


def _uses(file: File, scope: ast.AST, name: str) -> list[ast.Name]:
    uses = file.names_by_id.get(name, [])
    return uses if scope is file.tree else [use for use in uses if scope in file.ancestors(use)]


def _only_assignment(file: File, uses: list[ast.Name]) -> ast.Assign | None:
    stores = [use for use in uses if not isinstance(use.ctx, ast.Load)]
    statement = file.parents[stores[0]] if len(stores) == 1 else None
    return statement if isinstance(statement, ast.Assign) and statement.targets == stores else None


def _last_assignment(file: File, uses: list[ast.Name], read: ast.Name) -> tuple[ast.Assign | None, list[ast.Name]]:
    """The only assignment of a name; of several, in a function without loops around them, the one in front of a place.

    With it come the reads that find what other assignments gave.
    """
    stores = sorted((use for use in uses if not isinstance(use.ctx, ast.Load)), key=_place)
    if len(stores) < 2 or any(file.function(use) is not file.function(read) for use in uses):
        return _only_assignment(file, uses), []
    if any(isinstance(around, _REPEATED) for use in uses for around in file.ancestors(use)):
        return None, []
    earlier = [store for store in stores if _place(store) < _place(read)]
    statement = file.parents[earlier[-1]] if earlier else None
    if not isinstance(statement, ast.Assign) or statement.targets != earlier[-1:] or _place(read) < _end(statement):
        return None, []
    block, index = file.block_of(statement)
    behind = [_place(store) for store in stores if file.parents[store] in block[index + 1 :] and _place(store) > _place(read)]
    return statement, [n for n in uses if _place(n) < _place(statement) or (behind and _place(n) > behind[0])]


_REPEATED = (ast.For, ast.While, ast.AsyncFor, ast.Try, ast.Match, ast.comprehension)


def _place(node: ast.expr | ast.stmt) -> tuple[int, int]:
    return node.lineno, node.col_offset


def _end(node: ast.stmt) -> tuple[int, int]:
    return node.end_lineno or node.lineno, node.end_col_offset or 0


def _dominates(file: File, first: ast.stmt, second: ast.stmt) -> bool:
    """Whether a statement stands in a block around another one, further up."""
    block, index = file.block_of(first)
    current: ast.AST = second
    while True:
        if any(current is s for s in block):
            return any(current is s for s in block[index + 1 :])
        parent = file.parents.get(current)
        if parent is None:
            return False
        current = parent


def _is_parameter(scope: ast.AST, name: str) -> bool:
    return isinstance(scope, (ast.FunctionDef, ast.AsyncFunctionDef)) and any(
        a.arg == name for a in ast.walk(scope.args) if isinstance(a, ast.arg)
    )


def resolved(file: File, node: ast.expr) -> tuple[ast.expr, ast.stmt | None]:
    """The expression behind a name, and the statement that becomes needless if its reader goes; else the node itself."""
    if not isinstance(node, ast.Name):
        return node, None
    found = local_value(file, node)
    if found is None:
        return node, None
    return found.value, found.statement if found.read_once else None


def made_for(file: File, read: ast.expr | None) -> ast.expr | None:
    """What a name that is read was assigned, where each run of the one assignment comes with a run of the reading loop."""
    assigned = local_value(file, read) if isinstance(read, ast.Name) else None
    if assigned is None or read is None or file.function(assigned.statement) is not file.function(read):
        return None
    loops = (ast.For, ast.While, ast.AsyncFor)
    inside = [a for a in file.ancestors(assigned.statement) if isinstance(a, loops)]
    around_read = [a for a in file.ancestors(read) if isinstance(a, loops)]
    return assigned.value if around_read[: len(inside)] == inside or inside == around_read else None
