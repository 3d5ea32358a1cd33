"""Activation checkpointing around a wrap: right before or after sharding, tidier before."""

from __future__ import annotations

import ast

from ..analysis.scopes import dotted_path
from ..migration import Migration
from ..view import FileView

WRAPPERS = "torch.distributed.algorithms._checkpoint.checkpoint_wrapper"
APPLY = f"{WRAPPERS}.apply_activation_checkpointing"


def statements_behind(
    migration: Migration, view: FileView, call: ast.Call, model: ast.expr
) -> list[ast.stmt]:
    """Statements right behind a wrap that only apply activation checkpointing to its model, with what they name for it."""
    statement = view.statement(call)
    targets = statement.targets if isinstance(statement, ast.Assign) else []
    path = dotted_path(targets[0]) if len(targets) == 1 else None
    if path is None or path != dotted_path(model):
        return []
    block, place = view.block_of(statement)
    found: list[ast.stmt] = []
    named: list[ast.stmt] = []
    for following in block[place + 1 :]:
        if not view.stands_alone(following):
            break
        if _only_applies(migration, view, following, path):
            found.extend((*named, following))
            named.clear()
        elif _only_names(view, following, taken=view.names_in(statement)):
            named.append(following)
        else:
            break
    return found


def _only_names(view: FileView, statement: ast.stmt, taken: set[str]) -> bool:
    """``wrapper = partial(checkpoint_wrapper, …)``, a lambda or a function, of a name that the wrap does not use."""
    if isinstance(statement, ast.FunctionDef):
        given = [*statement.args.defaults, *filter(None, statement.args.kw_defaults), *statement.decorator_list]
        return statement.name not in taken and not given
    if not isinstance(statement, ast.Assign) or len(statement.targets) != 1:
        return False
    target, value = statement.targets[0], statement.value
    if not isinstance(target, ast.Name) or target.id in taken:
        return False
    if isinstance(value, ast.Lambda):
        return not value.args.defaults
    if not isinstance(value, ast.Call) or view.external(value.func) != "functools.partial" or view.names_in(value) & taken:
        return False
    given = [*value.args, *(keyword.value for keyword in value.keywords)]
    return all(isinstance(part, (ast.Lambda, ast.Constant)) or dotted_path(part) is not None for part in given)


def _only_applies(migration: Migration, view: FileView, statement: ast.stmt, path: str) -> bool:
    if isinstance(statement, ast.If):
        return not statement.orelse and all(_only_applies(migration, view, s, path) for s in statement.body)
    if not isinstance(statement, ast.Expr) or not isinstance(statement.value, ast.Call):
        return False
    call = statement.value
    first = call.args[0] if call.args else next((k.value for k in call.keywords if k.arg == "model"), None)
    if first is None or dotted_path(first) != path:
        return False
    return view.external(call.func) == APPLY or _reaches(migration, view, call)


def _reaches(migration: Migration, view: FileView, call: ast.Call) -> bool:
    """Whether a function of the repository is called that itself applies checkpointing, and wraps nothing."""
    functions = migration.program.callees(view, call)
    for value in functions:
        place, node = migration.program.function_node(value)
        calls = [inner for inner in ast.walk(node) if isinstance(inner, ast.Call)]
        if not any(place.external(inner.func) == APPLY for inner in calls):
            return False
    return bool(functions)


def chooses_what_to_checkpoint(migration: Migration, view: FileView, chooser: ast.AST) -> bool:
    """Whether a function or lambda is asked which modules to checkpoint, and for nothing that the tool sees besides."""
    function = migration.program.function_value(view, chooser)
    if function is None or migration.program.callers(view, chooser):
        return False
    for sites in migration.sites.values():
        for site in sites:
            if site.keyword is not None and site.symbol == f"{APPLY}(check_fn=)":
                if function in site.view.values(site.keyword.value):
                    return True
    return False
