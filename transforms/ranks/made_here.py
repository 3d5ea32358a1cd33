"""Models that are made where they are used: loaded or built by the very call that hands them over.

The flow analysis tells objects apart by the call that makes them. A factory that one script trains with and another
loads a finished model with is one such call, so the loaded model looks like the wrapped one. What an expression makes
anew, and nothing wraps on the way, is a plain model whatever others do with the factory.
"""

from __future__ import annotations

import ast

from ..analysis.scopes import assigned_names
from ..analysis.values import FunctionValue, Instance, Opaque, Value
from ..groups import Group
from ..migration import Migration
from ..view import FileView
from .guards import GuardFinder

_DEEPEST = 4


def is_made_here(migration: Migration, finder: GuardFinder, view: FileView, node: ast.expr, group: Group) -> bool:
    """Whether an expression behind a rank guard gives a model that is made behind that guard, and so is not sharded."""
    held = _models(view, node, group)
    return bool(held) and all(_is_new(migration, finder, view, node, group, value, 0) for value in held)


def is_made_in(migration: Migration, function: FunctionValue, view: FileView, name: ast.Name, group: Group) -> bool:
    """Whether every assignment of a name in a function makes the model, and the function wraps nothing of the group."""
    held, finder = _models(view, name, group), migration.once("guards", None, lambda: GuardFinder(migration.program))
    scope = view.function(name)
    if scope is None or not held or _wraps(migration, function, group):
        return False
    stores = [n for n in ast.walk(scope) if isinstance(n, ast.Name) and n.id == name.id and isinstance(n.ctx, ast.Store)]
    made = [given for store in stores if not _is_of_itself(given := _given(view, store), name.id)]
    return bool(made) and all(
        isinstance(value, ast.Call) and _is_new(migration, finder, view, value, group, model, 0)
        for value in made
        for model in held
    )


def _given(view: FileView, store: ast.Name) -> ast.expr | None:
    """What an assignment gives a name, also among others: ``image, model = image.half(), model.half()``."""
    target = view.parents[store]
    if isinstance(target, ast.Assign):
        return target.value
    statement = view.parents[target]
    if isinstance(target, ast.Tuple) and isinstance(statement, ast.Assign) and isinstance(statement.value, ast.Tuple):
        if len(target.elts) == len(statement.value.elts):
            return statement.value.elts[target.elts.index(store)]
    return None


def _is_of_itself(value: ast.expr | None, name: str) -> bool:
    """``model.half()`` for ``model``: the same object as before."""
    function = value.func if isinstance(value, ast.Call) else None
    return isinstance(function, ast.Attribute) and isinstance(function.value, ast.Name) and function.value.id == name


def _models(view: FileView, node: ast.expr, group: Group) -> list[Value]:
    return [value for value in view.values(node) if value in group.raw or value in [w.value for w in group.wraps]]


def _is_new(
    migration: Migration, finder: GuardFinder, view: FileView, node: ast.expr, group: Group, value: Value, depth: int
) -> bool:
    if not isinstance(value, (Instance, Opaque)) or depth > _DEEPEST:
        return False
    if isinstance(node, ast.Name):
        return _is_bound_to_new(migration, finder, view, node, group, value, depth)
    if not isinstance(node, ast.Call):
        return False
    if view.call_site(node) == value.site:
        return True
    if isinstance(node.func, ast.Attribute) and value in view.values(node.func.value):
        return _is_new(migration, finder, view, node.func.value, group, value, depth)  # ``load(path).half()``
    callees = [c for c in migration.program.callees(view, node) if _returns(migration, c, value)]
    return bool(callees) and all(_makes(migration, callee, group, value, depth + 1) for callee in callees)


def _is_bound_to_new(
    migration: Migration, finder: GuardFinder, view: FileView, name: ast.Name, group: Group, value: Value, depth: int
) -> bool:
    """Whether every assignment of a local name makes the model, behind the guard that the use stands behind."""
    guards, function = finder.around(view, name), view.function(name)
    if not guards or function is None:
        return False
    stores = [
        inner
        for inner in ast.walk(function)
        if isinstance(inner, ast.Name) and inner.id == name.id and isinstance(inner.ctx, ast.Store)
    ]
    for store in stores:
        statement, around = view.parents[store], finder.around(view, store)
        if not isinstance(statement, ast.Assign) or not around or around[0].statement is not guards[0].statement:
            return False
        if not _is_new(migration, finder, view, statement.value, group, value, depth + 1):
            return False
    return bool(stores)


def _returns(migration: Migration, function: FunctionValue, value: Value) -> bool:
    flow = migration.program.flow
    facts = flow.files[function.file].functions[function.index]
    return value in flow.values_of(facts.returns + flow.variable_offsets[function.file])


def _makes(migration: Migration, function: FunctionValue, group: Group, value: Value, depth: int) -> bool:
    """Whether a function can only have got hold of a model by making it: nobody hands it in, nothing keeps it."""
    if depth > _DEEPEST or not isinstance(value, (Instance, Opaque)) or _wraps(migration, function, group):
        return False
    view, node = migration.program.function_node(function)
    if not isinstance(node, ast.FunctionDef) or any("cache" in view.text(d) for d in node.decorator_list):
        return False
    local = assigned_names(node.body)
    for inner in ast.walk(node):
        if isinstance(inner, ast.arg) and value in view.values(inner):
            return False
        if isinstance(inner, (ast.Name, ast.Attribute, ast.Subscript)) and isinstance(inner.ctx, ast.Load):
            root = _root(inner)
            if value in view.values(inner) and not (isinstance(root, ast.Name) and root.id in local):
                return False
    calls = [inner for inner in ast.walk(node) if isinstance(inner, ast.Call)]
    if any(view.call_site(call) == value.site for call in calls):
        return True
    makers = [c for call in calls for c in migration.program.callees(view, call) if _returns(migration, c, value)]
    return bool(makers) and all(_makes(migration, maker, group, value, depth + 1) for maker in makers)


def _wraps(migration: Migration, function: FunctionValue, group: Group) -> bool:
    """Whether a function reaches a wrap of the group."""
    place = migration.program.function_node(function)
    return any(place in migration.order.functions_to((wrap.view, wrap.node)) for wrap in group.wraps)


def _root(node: ast.expr) -> ast.expr:
    while isinstance(node, (ast.Attribute, ast.Subscript)):
        node = node.value
    return node
