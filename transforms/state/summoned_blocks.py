"""The blocks that run under a context of ``summon_full_params``, wherever it was made, and what they may not do."""

from __future__ import annotations

import ast
from collections.abc import Iterable
from dataclasses import dataclass

from ..analysis.objects import is_anything
from ..analysis.symbols import FSDP1
from ..analysis.values import Optimizer
from ..groups import Group
from ..migration import Migration
from ..ranks.conditions import last_name
from ..sites import Site
from ..training.in_scope import means_a_model
from ..training.passes import BACKWARD, FORWARD, called_name, calls_in, passes_in
from ..view import FileView
from .summoned import is_model_of, models_of

_LOOKS = frozenset(
    {"parameters", "named_parameters", "buffers", "named_buffers", "modules", "named_modules", "children", "named_children",
     "get_parameter", "get_submodule", "get_buffer", "state_dict", "train", "eval", "requires_grad_"}
)  # fmt: skip
"""Methods of a model that run no forward."""

_LOOKING = frozenset(f"builtins.{name}" for name in ("len", "isinstance", "print", "id", "type", "getattr", "hasattr", "str"))


_OF_GRADIENTS = frozenset({"zero_grad", "clip_grad_norm_", "clip_grad_value_"})


@dataclass(frozen=True, eq=False)
class Block:
    """A ``with`` statement under the context."""

    view: FileView
    statement: ast.With


def blocks_under(migration: Migration, view: FileView, call: ast.expr) -> list[Block] | None:
    """Every block that a context is entered for; None where one may be out of sight."""
    return _blocks(migration, view, call, set())


def _blocks(migration: Migration, view: FileView, node: ast.expr, seen: set[ast.AST]) -> list[Block] | None:
    parent = view.parents[node]
    if node in seen:
        return []
    seen.add(node)
    if isinstance(parent, ast.withitem):
        statement = view.parents[parent]
        return [Block(view, statement)] if isinstance(statement, ast.With) else None
    if isinstance(parent, ast.IfExp) and node is not parent.test:
        return _blocks(migration, view, parent, seen)
    if isinstance(parent, ast.Assign) and len(parent.targets) == 1 and isinstance(parent.targets[0], ast.Name):
        name, scope = parent.targets[0].id, view.function(node)
        loads = [n for n in ast.walk(scope or view.tree) if isinstance(n, ast.Name) and n.id == name]
        return _together(migration, [(view, n) for n in loads if isinstance(n.ctx, ast.Load)], seen) if scope else None
    if isinstance(parent, ast.Return):
        function = view.function(node)
        if not isinstance(function, ast.FunctionDef) or function.decorator_list:
            return None
        return _together(migration, migration.program.callers(view, function), seen)
    return None


def _together(
    migration: Migration, uses: Iterable[tuple[FileView, ast.expr]], seen: set[ast.AST]
) -> list[Block] | None:
    found: list[Block] = []
    for view, node in uses:
        blocks = _blocks(migration, view, node, seen)
        if blocks is None:
            return None
        found.extend(blocks)
    return found


def what_stops(migration: Migration, block: Block, group: Group | None) -> str:
    """Why a block cannot run on whole parameters that are put in the place of shards; empty where it can."""
    view, body = block.view, block.statement.body
    passes = passes_in(migration, view, body, group)
    for name in (FORWARD, BACKWARD):
        if name in passes:
            return f"a {name} runs in the block at {view.path}:{block.statement.lineno}"
    for node in (inner for statement in body for inner in ast.walk(statement)):
        if isinstance(node, ast.Attribute) and node.attr == "grad":
            return f"the parameters of the block have no gradients ({view.path}:{node.lineno})"
    for where, call in _calls(migration, view, body):
        place = f"{where.path}:{call.lineno}"
        if _steps(where, call):
            return f"what the step at {place} changes would be overwritten when the block ends"
        if called_name(call) in _OF_GRADIENTS:
            return f"the parameters of the block have no gradients ({place})"
        if any(isinstance(value, Optimizer) for value in where.values(call)):
            return f"the optimizer that is built at {place} would hold what is gone after the block"
        models = models_of(block.statement) if where is view else frozenset[str]()
        if ast.dump(call.func) in models:
            return f"a {FORWARD} runs in the block at {place}"
        if _may_run(migration, where, call, group, models):
            return f"what {ast.unparse(call.func)} at {place} does with the model is not known"
    return ""


def is_whole_in_block(migration: Migration, view: FileView, node: ast.AST, group: Group) -> bool:
    """Whether a place is in a block for which a function hands out whole parameters wherever the model is wrapped."""

    def find() -> set[ast.AST]:
        sites = [site for site in migration.sites_of(group) if site.member == "summon_full_params"]
        return {
            block.statement
            for site in sites
            if site.call is not None and _is_for_every_wrapped(site)
            for block in blocks_under(migration, site.view, site.call) or ()
        }

    statements = migration.once("summoned blocks", group, find)
    return any(ancestor in statements for ancestor in view.ancestors(node))


def _is_for_every_wrapped(site: Site) -> bool:
    """Whether nothing but the type of the model decides about the context in the function that makes it."""
    view, function = site.view, site.view.function(site.node)
    if function is None or site.call is None or isinstance(view.parents[site.call], ast.withitem):
        return False
    tests = [node.test for node in ast.walk(function) if isinstance(node, (ast.If, ast.IfExp))]
    return all(
        isinstance(test, ast.Call)
        and view.external(test.func) == "builtins.isinstance"
        and view.external(test.args[-1]) == FSDP1
        for test in tests
    )


def _steps(view: FileView, call: ast.Call) -> bool:
    receiver = call.func.value if isinstance(call.func, ast.Attribute) and call.func.attr == "step" else None
    return receiver is not None and any(isinstance(value, Optimizer) for value in view.values(receiver))


def _may_run(
    migration: Migration, view: FileView, call: ast.Call, group: Group | None, models: frozenset[str]
) -> bool:
    """Whether a call goes out of sight with the model: there it may run a forward."""
    if migration.program.callees(view, call):
        return False
    if isinstance(call.func, ast.Attribute) and _is_surely_model(view, call.func.value, group, models):
        return call.func.attr not in _LOOKS
    given = [*call.args, *(keyword.value for keyword in call.keywords)]
    return any(_is_surely_model(view, a, group, models) for a in given) and view.external(call.func) not in _LOOKING


def _is_surely_model(view: FileView, node: ast.expr, group: Group | None, summoned: frozenset[str]) -> bool:
    """Whether an expression is a model; where little is known of it, its name has to say so."""
    if ast.dump(node) in summoned:
        return True
    models = [value for value in view.values(node) if is_model_of(value, group)]
    return any(not is_anything(value) for value in models) or means_a_model(models, last_name(node))


def _calls(migration: Migration, view: FileView, body: Iterable[ast.AST]) -> list[tuple[FileView, ast.Call]]:
    """The calls of a block and of the functions of the repository that it comes to."""
    found: list[tuple[FileView, ast.Call]] = []
    pending: list[tuple[FileView, Iterable[ast.AST]]] = [(view, body)]
    seen: set[object] = set()
    while pending:
        where, statements = pending.pop()
        for call in calls_in(statements):
            found.append((where, call))
            for callee in migration.program.callees(where, call):
                if callee not in seen:
                    seen.add(callee)
                    inner, node = migration.program.function_node(callee)
                    reached = getattr(node, "body", [])
                    pending.append((inner, reached if isinstance(reached, list) else [reached]))
    return found
