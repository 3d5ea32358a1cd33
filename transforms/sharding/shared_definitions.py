"""Definitions that stand in front of a wrap already, since an earlier wrap of the same function takes the same."""

from __future__ import annotations

import ast
from collections.abc import Iterable

from ..groups import Wrap
from ..migration import Migration
from ..view import FileView
from .plan import Name, ShardingPlan, plain_text


def share_definitions(migration: Migration, plan: ShardingPlan) -> None:
    """Leaves out of a plan what an earlier wrap defines on every way to it: a mesh, a policy, a hook."""
    view, call = plan.view, plan.call
    function = view.function(call)
    wraps = [w for g in migration.groups.all for w in g.wraps if w.view is view and view.function(w.node) is function]
    known: dict[str, tuple[str, Wrap]] = {}
    for wrap in sorted(wraps, key=lambda wrap: wrap.node.lineno) if _is_a_statement(view, call) else ():
        if wrap.node is call:
            continue
        lends = wrap.node not in migration.apart and _comes_first(view, wrap.node, call)
        for text in _definitions(migration, wrap):
            name = _defined(text)
            if lends and name not in known:
                known[name] = (text, wrap)
            elif name in known and known[name][0] != text:
                del known[name]
    own = set(_texts(plan))
    for text, lender in known.values():
        if text in own and not _changes(view, call, text, lender.node.lineno):
            plan.known.add(text)
            migration.lent.setdefault(call, set()).add(lender.node)


def lenders_that_stay(migration: Migration, applied: Iterable[ast.Call | None]) -> set[ast.Call]:
    """Wraps that stay as they are although another one, which goes, would use what they define."""
    going = set(applied)
    return {lender for call, lenders in migration.lent.items() if call in going for lender in lenders - going}


def _definitions(migration: Migration, wrap: Wrap) -> list[str]:
    from .constructor import constructor_of
    from .data_parallel import data_parallel_of

    group = migration.groups.of([wrap.value])
    if not wrap.names_wrapper:
        return []
    if wrap.value.kind == "DDP":
        plan = data_parallel_of(migration, wrap.view, wrap.node, group).plan
    else:
        plan = constructor_of(migration, wrap.view, wrap.node, group).plan
    return _texts(plan)


def _texts(plan: ShardingPlan) -> list[str]:
    """The definitions of a plan that are the same whatever the model is."""
    whatever_the_model = [s for s in plan.statements() if not any(isinstance(part, Name) for part in s)]
    return [text for statement in whatever_the_model if _defined(text := plain_text(plan.view, statement))]


def _defined(text: str) -> str:
    """The name that a statement binds: an assignment or a function."""
    try:
        body = ast.parse(text.strip()).body
    except SyntaxError:
        return ""
    statement = body[0] if len(body) == 1 else None
    if isinstance(statement, ast.FunctionDef):
        return statement.name
    targets = statement.targets if isinstance(statement, ast.Assign) else []
    return targets[0].id if len(targets) == 1 and isinstance(targets[0], ast.Name) else ""


def _is_a_statement(view: FileView, call: ast.Call) -> bool:
    statement = view.statement(call)
    return isinstance(statement, (ast.Assign, ast.AnnAssign, ast.Expr, ast.Return)) and statement.value is call


def _comes_first(view: FileView, first: ast.Call, second: ast.Call) -> bool:
    """Whether one wrap has always run where another one stands."""
    if not _is_a_statement(view, first) or isinstance(view.statement(first), ast.Return):
        return False
    block, place = view.block_of(view.statement(first))
    around = [view.statement(second), *(a for a in view.ancestors(view.statement(second)) if isinstance(a, ast.stmt))]
    return any(statement in block[place + 1 :] for statement in around)


def _changes(view: FileView, call: ast.Call, text: str, line: int) -> bool:
    """Whether a name that a definition reads gets another value behind it."""
    read = {node.id for node in ast.walk(ast.parse(text.strip())) if isinstance(node, ast.Name)}
    scope = view.function(call) or view.tree
    return any(
        isinstance(node, ast.Name) and node.id in read and isinstance(node.ctx, ast.Store) and node.lineno > line
        for node in ast.walk(scope)
    )
