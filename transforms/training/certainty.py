"""Whether an expression is surely computed from sharded parameters, or may be a plain number or tensor as well."""

from __future__ import annotations

import ast
from dataclasses import replace

from ..analysis import library
from ..analysis.values import Derived, Opaque
from ..migration import Migration
from ..program import owner_of
from ..sites import Site
from ..view import FileView
from .after_forward import follows_a_forward
from .conditions import needs_guard

_DEEPEST = 4
_PARAMETERS = frozenset({"parameters", "named_parameters", "get_parameter"})


def surely_sharded(migration: Migration, view: FileView, node: ast.expr, depth: int = 0) -> bool:
    """Whether whatever an expression gives is computed from parameters or gradients, on every way that is seen.

    What a helper receives from several callers, or what was put into a container beside numbers, is not sure.
    """
    if depth > _DEEPEST:
        return False
    if isinstance(node, ast.Call):
        return _is_computed(migration, view, node, depth)
    if isinstance(node, ast.BinOp):
        return any(surely_sharded(migration, view, side, depth) for side in (node.left, node.right))
    if isinstance(node, ast.IfExp):
        return all(surely_sharded(migration, view, branch, depth) for branch in (node.body, node.orelse))
    if isinstance(node, ast.UnaryOp):
        return surely_sharded(migration, view, node.operand, depth)
    if isinstance(node, ast.Attribute):
        if node.attr not in ("data", "grad") and _kinds(view, node) == {"parameters"}:
            return True
        return surely_sharded(migration, view, node.value, depth)
    if isinstance(node, ast.Subscript):
        key = node.slice
        if isinstance(key, ast.Constant) and isinstance(key.value, str):
            return bool(_kinds(view, node)) and _kinds(view, node) <= library.TENSORS
        return surely_sharded(migration, view, node.value, depth)
    if isinstance(node, (ast.List, ast.Tuple)):
        return bool(node.elts) and all(surely_sharded(migration, view, part, depth) for part in node.elts)
    if isinstance(node, (ast.ListComp, ast.GeneratorExp)):
        return surely_sharded(migration, view, node.elt, depth)
    return isinstance(node, ast.Name) and _is_sure_name(migration, view, node, depth)


def always_sharded(migration: Migration, site: Site, node: ast.expr) -> bool:
    """Whether the tensor at a hazard's site is surely of sharded parameters, and no plain model comes by there."""
    group = site.group
    assert group is not None
    owners = (owner_of(value) for value in site.values)
    wraps = tuple(wrap.value for wrap in group.wraps)
    models = replace(site, values=tuple(v for v in owners if v in group.raw or v in wraps) or wraps)
    if needs_guard(models, node) or follows_a_forward(migration, site.view, node, group, site.values):
        return False
    return surely_sharded(migration, site.view, node)


def _is_computed(migration: Migration, view: FileView, call: ast.Call, depth: int) -> bool:
    """A method of such a tensor, a torch function of one, or a way of asking a model for its parameters."""
    if isinstance(call.func, ast.Attribute):
        if call.func.attr in _PARAMETERS:
            return True
        if view.external(call.func) is None:
            return surely_sharded(migration, view, call.func.value, depth)
    return any(surely_sharded(migration, view, argument, depth) for argument in call.args)


def _is_sure_name(migration: Migration, view: FileView, name: ast.Name, depth: int) -> bool:
    function = view.function(name)
    scope = function if function is not None else view.tree
    if _is_bound_by_comprehension(view, name):
        return _kinds(view, name) <= {"parameters", "gradients"} and bool(_kinds(view, name))
    bindings = [node for node in ast.walk(scope) if _binds(node, name.id) and view.function(node) is function]
    if bindings:
        sources = [source for binding in bindings if (source := _source(binding)) is not None]
        computed = [source for source in sources if not isinstance(source, ast.Constant)]
        return bool(computed) and all(_is_sure_source(migration, view, s, name, depth) for s in computed)
    if function is None or isinstance(function, ast.Lambda) or not _is_parameter(function, name.id):
        return False
    arguments = [(at, _argument(function, call, name.id)) for at, call in migration.program.callers(view, function)]
    return bool(arguments) and all(
        given is not None and surely_sharded(migration, at, given, depth + 1) for at, given in arguments
    )


def _is_sure_source(migration: Migration, view: FileView, source: ast.expr, name: ast.Name, depth: int) -> bool:
    """What a name is bound to: a value, or what a loop goes over (then it has to hold parameters alone)."""
    if isinstance(view.parents[source], (ast.For, ast.AsyncFor)):
        kinds = _kinds(view, name)
        return bool(kinds) and kinds <= {"parameters", "gradients"}
    if _runs_before_a_wrap(migration, view, source) or _runs_behind_a_forward(migration, view, source):
        return False
    return surely_sharded(migration, view, source, depth + 1)


def _runs_before_a_wrap(migration: Migration, view: FileView, node: ast.expr) -> bool:
    """Whether what a name is bound to may be computed from parameters that are not sharded yet."""
    group = migration.groups.of_tensors(view.values(node))
    wraps = group.wraps if group is not None else []
    relations = {migration.order.relation((view, node), (wrap.view, wrap.node)) for wrap in wraps}
    return bool(relations & {"before", "both"})


def _runs_behind_a_forward(migration: Migration, view: FileView, node: ast.expr) -> bool:
    """Whether what a name is bound to may be computed from parameters that are still gathered."""
    values = tuple(view.values(node))
    group = migration.groups.of_tensors(values)
    return group is not None and follows_a_forward(migration, view, node, group, values)


def _is_bound_by_comprehension(view: FileView, name: ast.Name) -> bool:
    displays = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
    return any(
        isinstance(inner, ast.Name) and inner.id == name.id
        for ancestor in view.ancestors(name)
        if isinstance(ancestor, displays)
        for generator in ancestor.generators
        for inner in ast.walk(generator.target)
    )


def _binds(node: ast.AST, name: str) -> bool:
    if isinstance(node, ast.Assign):
        targets = node.targets
    elif isinstance(node, (ast.AugAssign, ast.AnnAssign, ast.For, ast.AsyncFor)):
        targets = [node.target]
    else:
        return False
    return any(
        isinstance(inner, ast.Name) and inner.id == name and isinstance(inner.ctx, ast.Store)
        for target in targets
        for inner in ast.walk(target)
    )


def _source(binding: ast.AST) -> ast.expr | None:
    if isinstance(binding, (ast.Assign, ast.AugAssign, ast.AnnAssign)):
        return binding.value
    return binding.iter if isinstance(binding, (ast.For, ast.AsyncFor)) else None


def _is_parameter(function: ast.FunctionDef | ast.AsyncFunctionDef, name: str) -> bool:
    given = function.args
    return any(argument.arg == name for argument in (*given.posonlyargs, *given.args, *given.kwonlyargs))


def _argument(function: ast.FunctionDef | ast.AsyncFunctionDef, call: ast.Call, name: str) -> ast.expr | None:
    """What a call gives for a parameter, where it can be told."""
    for keyword in call.keywords:
        if keyword.arg == name:
            return keyword.value
    names = [argument.arg for argument in (*function.args.posonlyargs, *function.args.args)]
    if names and names[0] in ("self", "cls"):
        names = names[1:]
    place = names.index(name) if name in names else len(call.args)
    given = call.args[place] if place < len(call.args) else None
    return None if isinstance(given, ast.Starred) else given


def _kinds(view: FileView, node: ast.expr) -> set[str]:
    """What the values of an expression are; ``other`` for what is no part of a model."""
    values = [v for v in view.values(node) if not (isinstance(v, Opaque) and v.name in library.PARAMETER)]
    return {value.kind if isinstance(value, Derived) else "other" for value in values}
