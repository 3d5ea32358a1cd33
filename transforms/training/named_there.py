"""What a model and an optimizer are called at a place, and whether an optimizer's parameters may be exchanged there."""

from __future__ import annotations

import ast
import builtins
from collections.abc import Iterator
from dataclasses import dataclass

from ..analysis.library import TENSORS, is_scheduler
from ..analysis.scopes import dotted_path
from ..analysis.values import Constant, Container, Derived, Instance, Opaque, Optimizer, Unknown, Value
from ..groups import Group, Wrap
from ..migration import Migration
from ..view import FileView
from .passes import called_name, outside_name

_KEEP_A_LIST = frozenset({"LBFGS"})
"""Optimizers of torch that keep a list of their parameters beside their groups."""
_IN_PLACE = frozenset({"to", "cuda", "cpu", "train"})
"""Methods of a module that give the module itself."""
_HARMLESS = ("torch.", "logging.")
_COLLECTING = frozenset({"append", "extend", "add"})
_LISTS = frozenset({"list", "tuple", "ListComp"})


@dataclass(frozen=True)
class Named:
    """An optimizer as an argument: ``optimizer``, ``*self.optimizers``."""

    argument: str
    is_list: bool
    may_be_none: bool


def model_at(migration: Migration, view: FileView, call: ast.Call, wrap: Wrap) -> str | None:
    """What the model of a wrap is called before the call that wraps it, or that reaches the wrap."""
    taken = wrap.node.args[0] if wrap.node.args else None
    if taken is None:
        return None
    if call is wrap.node:
        while isinstance(taken, ast.Call) and isinstance(taken.func, ast.Attribute) and taken.func.attr in _IN_PLACE:
            taken = taken.func.value
        return view.text(taken) if dotted_path(taken) is not None else None
    models = migration.groups.models
    wrapped = set(models(wrap.view.values(taken)))
    wrapped = {value for value in wrapped if value != Unknown(-1)} or wrapped
    given = [*call.args, *(keyword.value for keyword in call.keywords)]
    fitting = {dotted_path(node) for node in given if wrapped & set(models(view.values(node)))}
    if not fitting:
        fitting = {path for path, node in _mentions(view, call) if wrapped <= set(models(view.values(node)))}
    return fitting.pop() if len(fitting) == 1 else None


def optimizer_at(migration: Migration, view: FileView, statement: ast.stmt, optimizer: Optimizer) -> Named | None:
    """What an optimizer is called at a statement, where nothing of another kind may have that name."""
    if not optimizer.name.startswith("torch.optim.") or optimizer.name.rpartition(".")[2] in _KEEP_A_LIST:
        return None
    latest: dict[str, list[Value]] = {}
    for path, node in _mentions(view, statement):
        latest[path] = view.values(node)
    for path in sorted(latest, key=lambda path: (path.count("."), path)):
        values = latest[path]
        held = migration.program.elements(values)
        if optimizer not in held or not all(_may_be_exchanged(migration, value) for value in held):
            continue
        one = optimizer in values
        if not one and any(value.kind not in _LISTS for value in values if isinstance(value, Container)):
            continue
        none = any(isinstance(value, Constant) for value in values)
        if not any(isinstance(value, (Container, Opaque)) for value in values):
            return Named(path, False, none)
        if one:
            return Named(f"*({path} if isinstance({path}, (list, tuple)) else [{path}])", False, none)
        if not none:
            return Named(f"*{path}", True, False)
    return None


def _may_be_exchanged(migration: Migration, value: Value) -> bool:
    if isinstance(value, Constant):
        return value.value is None
    if isinstance(value, Instance):
        return _is_optimizer(migration, value) and not _keeps_parameters(migration, value)
    if isinstance(value, Opaque):
        return _is_like_another(migration, value)
    return isinstance(value, (Optimizer, Unknown, Container, Derived))


def _is_like_another(migration: Migration, value: Opaque) -> bool:
    """Whether a collection is made of another one's type, ``type(held)(f(item) for item in held)``."""
    made = migration.program.call_node(value.site)[1].func
    return isinstance(made, ast.Call) and isinstance(made.func, ast.Name) and made.func.id == "type"


def _is_optimizer(migration: Migration, value: Instance) -> bool:
    return any(isinstance(v, Optimizer) and v.site == value.site for v in migration.program.flow.values)


def _keeps_parameters(migration: Migration, value: Instance) -> bool:
    """Whether a class of the repository keeps something of its parameters beside its groups."""
    program = migration.program
    for cls in program.flow.ancestors(value.cls):
        view, line = program.view(cls.file), program.files[cls.file].classes[cls.index].line
        for definition in view.nodes(ast.ClassDef):
            if definition.lineno == line and any(map(_stores_parameters, ast.walk(definition))):
                return True
    return False


def _stores_parameters(node: ast.AST) -> bool:
    if not isinstance(node, ast.Assign) or not any(isinstance(target, ast.Attribute) for target in node.targets):
        return False
    names = [getattr(n, "attr", getattr(n, "id", "")) for n in ast.walk(node.value)]
    return any("param" in name for name in names)


def _mentions(view: FileView, place: ast.AST) -> Iterator[tuple[str, ast.AST]]:
    """The paths that the function around a place mentions before the place's end, in the order of the text."""
    scope, end = view.function(place) or view.tree, (getattr(place, "end_lineno", 0), getattr(place, "end_col_offset", 0))
    found: list[ast.Name | ast.Attribute | ast.arg] = [
        node
        for node in ast.walk(scope)
        if isinstance(node, (ast.Name, ast.Attribute, ast.arg))
        and (node.lineno, node.col_offset) < end
        and (view.function(node) or view.tree) is scope
        and not (isinstance(node, (ast.Name, ast.Attribute)) and _is_bound_by(view, node, place))
    ]
    for node in sorted(found, key=lambda node: (node.lineno, node.col_offset)):
        path = node.arg if isinstance(node, ast.arg) else dotted_path(node)
        if path is not None:
            yield path, node


def _is_bound_by(view: FileView, node: ast.Name | ast.Attribute, place: ast.AST) -> bool:
    """Whether a name gets its value from the statement of a place, and so means something else before it."""
    return isinstance(node.ctx, ast.Store) and view.statement(node) is view.statement(place)


def stale_parameters(migration: Migration, group: Group, view: FileView, place: ast.AST) -> bool:
    """Whether a function keeps parameters of the model beside the optimizer that it gets at a place."""
    scope = view.function(place) or view.tree
    after = view.statement(place).end_lineno or 0
    nodes = [n for n in ast.walk(scope) if isinstance(n, (ast.Name, ast.Attribute)) and view.function(n) is view.function(place)]
    bound = {n.id for n in nodes if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store) and n.lineno > after}
    for node in nodes:
        late = isinstance(node, ast.Name) and node.lineno > after and node.id not in bound
        kept = isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store)
        if not late and not kept:
            continue
        held = [v for v in migration.program.elements(view.values(node)) if isinstance(v, Derived) and v.kind in TENSORS]
        if held and migration.groups.of_tensors(held) is group:
            return True
    return False


def taken_outside(migration: Migration, view: FileView, place: ast.AST, optimizer: Optimizer) -> bool:
    """Whether outside code gets the optimizer before a place, and may keep its parameters: schedulers do not."""
    scope, line = view.function(place) or view.tree, getattr(place, "lineno", 0)
    for call in ast.walk(scope):
        if not isinstance(call, ast.Call) or call is place or call.lineno > line:
            continue
        given = [*call.args, *(keyword.value for keyword in call.keywords)]
        if not any(optimizer in migration.program.elements(view.values(node)) for node in given):
            continue
        name, last = outside_name(view, call.func) or "", called_name(call).lower()
        module, _, function = name.rpartition(".")
        known = name.startswith(_HARMLESS) or (module == "builtins" and hasattr(builtins, function))
        known = known or is_scheduler(name) or "sched" in last or last in _COLLECTING
        made = any(isinstance(v, Instance) and v.site == view.call_site(call) for v in view.values(call))
        if not known and not made and not migration.program.callees(view, call):
            return True
    return False
