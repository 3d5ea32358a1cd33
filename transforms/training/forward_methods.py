"""Methods of a model other than ``forward`` that compute with its parameters, and are called from outside."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ..analysis.values import Derived, FunctionValue, Instance, Opaque, Value, Wrapped
from ..groups import Group
from ..migration import Migration
from ..view import FileView

_DEEPEST = 4
_STANDARD = frozenset(
    {
        "forward", "__call__", "parameters", "named_parameters", "buffers", "named_buffers", "modules", "named_modules",
        "children", "named_children", "train", "eval", "to", "cuda", "cpu", "half", "float", "bfloat16", "double",
        "state_dict", "load_state_dict", "zero_grad", "requires_grad_", "apply", "register_buffer", "get_submodule",
        "register_parameter", "add_module", "register_forward_hook", "register_forward_pre_hook", "no_sync",
    }
)  # fmt: skip
_MAKES = frozenset({"new_zeros", "new_ones", "new_full", "new_empty", "new_tensor"})


@dataclass(frozen=True)
class MethodCall:
    """A call of a computing method on a model of ``group``."""

    view: FileView
    call: ast.Call
    group: Group
    name: str
    wrapped: frozenset[Value] = frozenset()
    """The wrapped models that the receiver may be; empty where it is only known by what was wrapped."""


def method_calls(migration: Migration) -> list[MethodCall]:
    """All such calls that may run after their model is wrapped."""
    return migration.once("method_calls", None, lambda: list(_find(migration)))


def methods_of(migration: Migration, group: Group | None, call: ast.Call | None = None) -> list[str]:
    """Names of the methods that have to be registered on a group's model: the one that a call wraps, if it is given."""
    found = [method for method in method_calls(migration) if method.group is group]
    if call is not None and group is not None:
        own = {wrap.value for wrap in group.wraps if wrap.node is call}
        found = [method for method in found if not method.wrapped or method.wrapped & own]
    return sorted({method.name for method in found})


def submodule_calls(migration: Migration) -> list[MethodCall]:
    """Calls of submodules from outside, after the wrap; ``name`` is the path below the model."""
    return migration.once("submodule_calls", None, lambda: list(_find_submodules(migration)))


def _find_submodules(migration: Migration) -> Iterator[MethodCall]:
    for view in migration.views():
        for node in view.nodes(ast.Call):
            if not isinstance(node.func, ast.Attribute):
                continue
            if not _is_module_call(view, node):
                continue
            names: list[str] = []
            receiver: ast.expr = node.func
            while isinstance(receiver, ast.Attribute):
                names.insert(0, receiver.attr)
                receiver = receiver.value
                values = view.values(receiver)
                group = migration.groups.of([v for v in values if isinstance(v, (Instance, Wrapped))])
                if group is None or "DDP" not in group.kinds or not _is_model(values, group):
                    continue
                path = [name for name in names if name != "module"]
                own = isinstance(receiver, ast.Name) and receiver.id == "self"
                if path and not own and _may_run_after(migration, view, node, group):
                    yield MethodCall(view, node, group, ".".join(path))
                break


def _may_run_after(migration: Migration, view: FileView, node: ast.AST, group: Group) -> bool:
    order = [migration.order.relation((view, node), (wrap.view, wrap.node)) for wrap in group.wraps]
    return any(relation != "before" for relation in order)


def _find(migration: Migration) -> Iterator[MethodCall]:
    for view in migration.views():
        for node in view.nodes(ast.Call):
            if not isinstance(node.func, ast.Attribute):
                continue
            name, receiver = node.func.attr, node.func.value
            if name in _STANDARD or name.startswith("__"):
                continue
            values = view.values(receiver)
            group = migration.groups.of([v for v in values if isinstance(v, (Instance, Wrapped))])
            if group is None or "DDP" not in group.kinds or not _is_model(values, group):
                continue
            if isinstance(receiver, ast.Name) and receiver.id == "self":
                continue
            if not _has(migration, values, group, name):
                continue
            callees = migration.program.callees(view, node)
            if not any(computes(migration, callee) for callee in callees):
                continue
            if any(_shards(migration, callee, group) for callee in callees):
                continue
            if _may_run_after(migration, view, node, group):
                yield MethodCall(view, node, group, name, _wrapped(view, receiver, group))


def _wrapped(view: FileView, receiver: ast.expr, group: Group) -> frozenset[Value]:
    """The wrapped models of a group that a receiver, or what its ``.module`` is taken off, may be."""
    source = receiver.value if isinstance(receiver, ast.Attribute) and receiver.attr == "module" else receiver
    wrapped = {wrap.value for wrap in group.wraps}
    return frozenset(value for value in view.values(source) if value in wrapped)


def _is_model(values: Sequence[Value], group: Group) -> bool:
    return any(value in group.raw or any(wrap.value == value for wrap in group.wraps) for value in values)


def _has(migration: Migration, values: Sequence[Value], group: Group, name: str) -> bool:
    """Whether the method is the model's own, rather than one of something else that the receiver may be instead."""
    models = [value for value in values if value in group.raw or any(wrap.value == value for wrap in group.wraps)]
    flow = migration.program.flow
    return any(not isinstance(model, Instance) or flow.has_member(model.cls, name) for model in models)


def computes(migration: Migration, callee: FunctionValue) -> bool:
    """Whether a method computes with parameters outside of calls of the model itself."""
    return _computes(migration, callee, set(), 0)


def _computes(migration: Migration, callee: FunctionValue, seen: set[FunctionValue], depth: int) -> bool:
    """Whether a method calls submodules of its object, itself or through other methods.

    A call of the object itself, ``self(x)``, runs the hooks and needs nothing.
    """
    if callee in seen or depth > _DEEPEST:
        return False
    seen.add(callee)
    view, function = migration.program.function_node(callee)
    arguments = getattr(getattr(function, "args", None), "args", [])
    if not isinstance(function, ast.FunctionDef) or not arguments or view.enclosing_class(function) is None:
        return False
    own = arguments[0].arg
    parts = _names_of_parts(function, own)
    for node in ast.walk(function):
        if not isinstance(node, ast.Call) or (isinstance(node.func, ast.Name) and node.func.id == own):
            continue
        if _is_module_call(view, node) or (isinstance(node.func, ast.Name) and node.func.id in parts):
            return True
        if is_made_like_a_parameter(view, node):
            return True
        path = _path_from(node.func, own)
        if path is None or path[-1] in _STANDARD - {"forward"}:
            continue
        callees = migration.program.callees(view, node)
        methods = [c for c in callees if _is_method(migration, c)]
        if len(path) == 1 and path[0] != "forward" and methods:
            if any(_computes(migration, method, seen, depth + 1) for method in methods):
                return True
        elif path[0] == "forward" or not callees:
            return True
    return False


def _shards(migration: Migration, callee: FunctionValue, group: Group) -> bool:
    """Whether a method itself wraps the model or its parts: it runs before there is anything to gather."""
    view, function = migration.program.function_node(callee)
    return any(wrap.view is view and function in view.ancestors(wrap.node) for wrap in group.wraps)


def _names_of_parts(function: ast.FunctionDef, own: str) -> set[str]:
    """Local names for parts of the object: ``for block in self.blocks``, ``head = self.head``."""
    found: set[str] = set()
    for node in ast.walk(function):
        if isinstance(node, (ast.For, ast.comprehension)):
            target, source = node.target, node.iter
        elif isinstance(node, ast.Assign) and _path_from(node.value, own) is not None:
            target, source = node.targets[0], node.value
        else:
            continue
        if any(isinstance(inner, ast.Attribute) and _path_from(inner, own) for inner in ast.walk(source)):
            found |= {inner.id for inner in ast.walk(target) if isinstance(inner, ast.Name)}
    return found


def _path_from(node: ast.expr, own: str) -> list[str] | None:
    """``["transformer", "wte"]`` for ``self.transformer.wte``."""
    parts: list[str] = []
    while isinstance(node, (ast.Attribute, ast.Subscript)):
        if isinstance(node, ast.Attribute):
            parts.append(node.attr)
        node = node.value
    return parts[::-1] if parts and isinstance(node, ast.Name) and node.id == own else None


def is_made_like_a_parameter(view: FileView, call: ast.Call) -> bool:
    """Whether a call makes a tensor of the type and on the device of a parameter."""
    if not isinstance(call.func, ast.Attribute) or call.func.attr not in _MAKES:
        return False
    return any(isinstance(value, Derived) and value.kind == "parameters" for value in view.values(call.func.value))


def _is_method(migration: Migration, callee: FunctionValue) -> bool:
    view, node = migration.program.function_node(callee)
    return view.enclosing_class(node) is not None


def _is_module_call(view: FileView, node: ast.Call) -> bool:
    """Whether a call calls a submodule, rather than a method or a class."""
    values = list(view.values(node.func))
    if isinstance(node.func, ast.Attribute):
        for owner in view.values(node.func.value):
            values.extend(view.program.attribute(owner, node.func.attr))
    return any(
        isinstance(value, Instance) or (isinstance(value, Opaque) and value.name.startswith("torch.nn."))
        for value in values
    )
