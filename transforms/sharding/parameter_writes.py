"""Writes into parameters while the model sees gathered copies of them: what is written is lost when these go."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import TypeGuard

from ..analysis.library import PARAMETER
from ..analysis.values import Derived
from ..migration import Migration
from ..training.passes import outside_name
from ..view import FileView

_OF_LAYERS = frozenset({"weight", "bias"})
_WRITES_NOTHING = frozenset({"requires_grad_", "retain_grad", "share_memory_", "detach_"})


def parameter_writes(
    migration: Migration, view: FileView, owner: ast.ClassDef, method: str
) -> Iterator[tuple[FileView, ast.expr]]:
    """The places of a method of a model, and of what it calls, that write into parameters."""
    names = _parameters(view, owner)
    for at, function in _run_by(migration, view, owner, method):
        own = names if at.enclosing_class(function) is owner else set[str]()
        for node in ast.walk(function):
            written = _written(node)
            if written is not None and (_is_parameter(written, own) or _holds_parameters(at, written)):
                yield at, written


def _parameters(view: FileView, owner: ast.ClassDef) -> set[str]:
    """The attributes of ``self`` that a class makes parameters."""
    return {
        target.attr
        for node in ast.walk(owner)
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call)
        if outside_name(view, node.value.func) in PARAMETER
        for target in node.targets
        if isinstance(target, ast.Attribute) and isinstance(target.value, ast.Name) and target.value.id == "self"
    }


def _run_by(migration: Migration, view: FileView, owner: ast.ClassDef, method: str) -> list[tuple[FileView, ast.AST]]:
    """A method, the methods of the class and the functions of the repository that it calls, at any depth."""
    methods = {node.name: node for node in owner.body if isinstance(node, ast.FunctionDef)}
    pending: list[tuple[FileView, ast.AST]] = [(view, methods[method])] if method in methods else []
    found: dict[ast.AST, FileView] = {}
    while pending:
        at, function = pending.pop()
        if function in found:
            continue
        found[function] = at
        for node in ast.walk(function):
            if isinstance(node, ast.Call):
                if at is view and _is_own(node.func) and node.func.attr in methods:
                    pending.append((view, methods[node.func.attr]))
                pending.extend(migration.program.function_node(callee) for callee in migration.program.callees(at, node))
    return [(at, function) for function, at in found.items()]


def _is_own(function: ast.expr) -> TypeGuard[ast.Attribute]:
    """``self.method``."""
    return isinstance(function, ast.Attribute) and isinstance(function.value, ast.Name) and function.value.id == "self"


def _holds_parameters(view: FileView, node: ast.expr) -> bool:
    """Whether a name stands for parameters: of a momentum encoder that a loop goes through, say."""
    if isinstance(node, ast.Attribute) and node.attr == "data":
        node = node.value
    if not isinstance(node, ast.Name) or not any(isinstance(v, Derived) and v.kind == "parameters" for v in view.values(node)):
        return False
    scope = view.function(node) or view.tree
    return all(_stands_for_itself(view, store) for store in ast.walk(scope) if _is_store(store, node.id))


def _is_store(node: ast.AST, name: str) -> TypeGuard[ast.Name]:
    return isinstance(node, ast.Name) and node.id == name and isinstance(node.ctx, ast.Store)


def _stands_for_itself(view: FileView, store: ast.Name) -> bool:
    """Whether a name is bound by a loop, or to an attribute or element: what is computed is a tensor of its own."""
    statement = view.statement(store)
    if not isinstance(statement, (ast.Assign, ast.AnnAssign)):
        return isinstance(statement, (ast.For, ast.AsyncFor))
    return isinstance(statement.value, (ast.Name, ast.Attribute, ast.Subscript))


def _written(node: ast.AST) -> ast.expr | None:
    """The tensor that a node writes into: by a method in place, or by an assignment to its data or its elements."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        name = node.func.attr
        in_place = name.endswith("_") and not name.startswith("_") and not name.endswith("__")
        return node.func.value if in_place and name not in _WRITES_NOTHING else None
    if isinstance(node, (ast.Attribute, ast.Subscript)) and isinstance(node.ctx, ast.Store):
        if isinstance(node, ast.Subscript) or node.attr == "data":
            return node.value
    return None


def _is_parameter(node: ast.expr, names: set[str]) -> bool:
    """``self.scale``, ``self.scale.data``, ``self.layer.weight``."""
    if isinstance(node, ast.Attribute) and node.attr == "data":
        node = node.value
    if not isinstance(node, ast.Attribute):
        return False
    if isinstance(node.value, ast.Name):
        return node.value.id == "self" and node.attr in names
    root: ast.expr = node.value
    while isinstance(root, (ast.Attribute, ast.Subscript)):
        root = root.value
    return node.attr in _OF_LAYERS and isinstance(root, ast.Name) and root.id == "self"
