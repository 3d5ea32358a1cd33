"""The code of a model's class, and of the classes that it is built of; its blocks."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator

from ..analysis.values import ClassValue, Instance, Value
from ..migration import Migration
from ..training.passes import outside_name
from ..view import FileView


def classes_of(migration: Migration, cls: ClassValue) -> Iterator[tuple[FileView, ast.ClassDef]]:
    """A class, its bases, and the classes of the repository that it or its methods build, at any depth."""
    seen: set[ClassValue] = set()
    pending = [cls]
    flow = migration.program.flow
    while pending:
        current = pending.pop()
        if current in seen:
            continue
        seen.add(current)
        pending.extend(flow.ancestors(current))
        found = class_node(migration, current)
        if found is None:
            continue
        view, node = found
        yield view, node
        for inner in ast.walk(node):
            if isinstance(inner, (ast.Name, ast.Attribute)):
                pending.extend(v for v in view.values(inner) if isinstance(v, ClassValue))
            if isinstance(inner, ast.Call):
                values = view.values(inner)
                pending.extend(v.cls for v in values if isinstance(v, Instance))


def class_node(migration: Migration, cls: ClassValue) -> tuple[FileView, ast.ClassDef] | None:
    """The view of a class's file and its ``class`` statement."""
    facts = migration.program.files[cls.file].classes[cls.index]
    view = migration.program.view(cls.file)
    for node in view.nodes(ast.ClassDef):
        if node.name == facts.name and facts.line in (node.lineno, *(d.lineno for d in node.decorator_list)):
            return view, node
    return None


def block_classes(migration: Migration, models: Iterable[Value]) -> list[str]:
    """Names of the classes that a model holds in a ``ModuleList`` (or unpacks into a ``Sequential``)."""
    found: list[str] = []
    for value in models:
        if not isinstance(value, Instance):
            continue
        for view, node in classes_of(migration, value.cls):
            for inner in ast.walk(node):
                if isinstance(inner, ast.Call) and outside_name(view, inner.func) in (
                    "torch.nn.ModuleList", "torch.nn.Sequential"
                ):  # fmt: skip
                    found.extend(_repeated(view, inner))
    return list(dict.fromkeys(found))


def _repeated(view: FileView, call: ast.Call) -> Iterator[str]:
    for inner in ast.walk(call):
        if isinstance(inner, (ast.ListComp, ast.GeneratorExp)) and isinstance(inner.elt, ast.Call):
            built = inner.elt
            if any(isinstance(v, Instance) for v in view.values(built)):
                yield ast.unparse(built.func)
