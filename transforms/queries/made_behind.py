"""Whether what an expression begins with is made behind a rank guard, or behind one like it: other ranks do not have it."""

from __future__ import annotations

import ast

from .conditions import is_own_object
from .file import File
from .guards import Guard, guard_of
from .sure_names import assigns


def is_made_behind(file: File, thing: ast.expr, guard: Guard, place: ast.AST | None = None) -> bool:
    """Whether an expression begins with something that is made behind the guard, or behind one like it.

    What is made after a ``place``, such as a model that is loaded anew once it has been saved, is not what stands there.
    """
    base = thing
    while isinstance(base, (ast.Attribute, ast.Subscript, ast.Call)):
        base = base.func if isinstance(base, ast.Call) else base.value
        if isinstance(base, ast.Attribute) and _is_of_some_ranks(file, base, guard):
            return True
    if not isinstance(base, ast.Name):
        return not isinstance(thing, (ast.Name, ast.Attribute))
    if _is_of_some_ranks(file, base, guard):
        return True
    scope = guard.statement if guard.function else file.function(guard.statement) or file.tree
    named = (n for n in file.names_by_id.get(base.id, ()) if isinstance(n.ctx, ast.Store))
    stores = [n for n in named if scope is file.tree or scope in file.ancestors(n)]
    inside: set[ast.AST] = set()
    if not guard.function:
        block, index = file.block_of(guard.statement)
        behind = block[index:] if guard.leaves else [guard.statement]
        inside = {n for s in behind for n in ast.walk(s) if place is None or not _is_after(file, n, place, guard)}
    stored = {n.id for n in inside if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
    if any(isinstance(n, ast.Name) and n.id in stored for n in ast.walk(thing)):
        return True  # models[name] in a loop over names
    return any(store in inside or (_is_behind_test(file, store) and _comes_before(file, store, guard)) for store in stores)


def _is_after(file: File, node: ast.AST, place: ast.AST, guard: Guard) -> bool:
    """Whether something behind a guard is reached after a place there alone: further down, and not in the same loop."""
    if file.function(place) is not file.function(guard.statement):
        return False  # it runs when its function is called
    ways = [{a for a in file.ancestors(n) if isinstance(a, _LOOPS)} for n in (node, place)]
    shared = (loop for loop in ways[0] & ways[1] if guard.statement in file.ancestors(loop) or loop is guard.statement)
    return getattr(node, "lineno", 0) > (getattr(place, "end_lineno", None) or 0) > 0 and next(shared, None) is None


_LOOPS = (ast.For, ast.AsyncFor, ast.While, ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)


def _is_behind_test(file: File, store: ast.Name) -> bool:
    """Whether some ranks alone bind a name here, and the others bind nothing to it in the other branch."""
    found = guard_of(file, store)
    return found is not None and (found.leaves or not assigns(found.statement, store.id))


def _comes_before(file: File, store: ast.Name, guard: Guard) -> bool:
    """Whether a name may have been bound when a guard of the same function is reached: further up, or in the round before."""
    if store.lineno < guard.statement.lineno:
        return True
    around = {a for a in file.ancestors(guard.statement) if isinstance(a, (ast.For, ast.AsyncFor, ast.While))}
    return not around.isdisjoint(file.ancestors(store))


def _is_of_some_ranks(file: File, path: ast.Attribute | ast.Name, guard: Guard) -> bool:
    """Whether other ranks have None there: in an attribute, or in a variable of the guard's function."""
    if isinstance(path, ast.Attribute):
        text = ast.unparse(path)
        return any(is_own_object(file, n) for n in file.nodes(ast.Attribute) if n.attr == path.attr and ast.unparse(n) == text)
    scope = file.function(guard.statement)
    same = [n for n in file.names_by_id.get(path.id, ()) if file.function(n) is scope]
    # Where some ranks alone come, a name holds what they have of its two values.
    reads = [n for n in same if isinstance(n.ctx, ast.Load) and guard_of(file, n) is None]
    return any(is_own_object(file, n) for n in reads or same)
