"""Calls that end up in code outside the repository: of its functions, and of what classes here inherit from it."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterable

from .analysis.values import ClassValue, Instance
from .migration import Migration
from .view import FileView

_KNOWN = ("torch.", "builtins.", "logging.", "copy.", "functools.", "itertools.", "contextlib.", "typing.")


def foreign_name(migration: Migration, view: FileView, call: ast.Call) -> str | None:
    """What is called, if it lies outside the repository and is not torch's; for a base's ``__init__``, the base."""
    function = call.func
    name = view.external(function)
    if name is None and isinstance(function, ast.Attribute):
        owner = view.external(function.value)
        name = f"{owner}.{function.attr}" if owner else None
    if name is not None:
        return None if name.startswith(_KNOWN) else name
    method = function.attr if isinstance(function, ast.Attribute) else "__init__"
    base = next((base for cls in _receivers(migration, view, call, method) for base in _bases(migration, cls)), None)
    if base is None:
        return None
    return base if method == "__init__" or not isinstance(function, ast.Attribute) else f"{base}.{method}"


def class_behind(migration: Migration, view: FileView, call: ast.Call) -> ClassValue | None:
    """The class of the repository through which a call reaches outside code."""
    function = call.func
    method = function.attr if isinstance(function, ast.Attribute) else "__init__"
    return next(iter(_receivers(migration, view, call, method)), None)


def saves_itself(migration: Migration, cls: ClassValue) -> bool:
    """Whether a class has a method of its own for saving and leaves none of that to a base outside."""
    program = migration.program
    found = False
    for ancestor in program.flow.ancestors(cls):
        facts = program.files[ancestor.file]
        definition = next(
            node for node in program.view(facts.path).nodes(ast.ClassDef) if node.lineno == facts.classes[ancestor.index].line
        )
        for method in definition.body:
            if isinstance(method, (ast.FunctionDef, ast.AsyncFunctionDef)) and "save" in method.name:
                found = True
                if any(_on_super(node.func) == method.name for node in ast.walk(method) if isinstance(node, ast.Call)):
                    return False
    return found


def _receivers(migration: Migration, view: FileView, call: ast.Call, method: str) -> Iterable[ClassValue]:
    """Classes of the repository that do not define the method called, so that one of their bases outside does."""
    function = call.func
    flow = migration.program.flow
    if isinstance(function, ast.Attribute) and _on_super(function):
        definition = view.enclosing_class(call)
        own = [v for v in view.values(definition) if isinstance(v, ClassValue)] if definition is not None else []
        return [cls for cls in own if not any(_defines(migration, a, method) for a in flow.ancestors(cls)[1:])]
    if isinstance(function, ast.Attribute):
        values = [v for v in view.values(function.value) if isinstance(v, Instance)]
        return [
            value.cls
            for value in values
            if not flow.has_member(value.cls, method) and not migration.program.attribute(value, method)
        ]
    made = [value for value in view.values(function) if isinstance(value, ClassValue)]
    return [cls for cls in made if not flow.has_member(cls, "__init__")]


def _on_super(function: ast.expr) -> str:
    """The method that is called on ``super()``."""
    if not isinstance(function, ast.Attribute) or not isinstance(function.value, ast.Call):
        return ""
    owner = function.value.func
    return function.attr if isinstance(owner, ast.Name) and owner.id == "super" else ""


def _defines(migration: Migration, cls: ClassValue, name: str) -> bool:
    return name in migration.program.files[cls.file].classes[cls.index].members


def _bases(migration: Migration, cls: ClassValue) -> list[str]:
    """The bases of a class outside the repository that are neither torch's nor of the standard library."""
    names = migration.program.flow.external_bases(cls)
    return [name for name in names if name.partition(".")[0] not in {"torch", *sys.stdlib_module_names}]
