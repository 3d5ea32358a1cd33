"""What a ``def`` or ``lambda`` says of itself: how it is bound, and whether it hands back what it gets."""

from __future__ import annotations

import ast

from .scopes import Function, dotted_path


def hands_back(node: Function) -> bool:
    """Whether a function returns one of its parameters, by whichever name."""
    arguments = node.args
    names = {parameter.arg for parameter in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)}
    for other in ast.walk(node):
        if isinstance(other, ast.Assign) and isinstance(other.value, ast.Name) and other.value.id in names:
            names |= {target.id for target in other.targets if isinstance(target, ast.Name)}
    returned = (n.value for n in ast.walk(node) if isinstance(n, ast.Return))
    return any(isinstance(value, ast.Name) and value.id in names for value in returned)


def binding(node: ast.AST, name: str) -> str:
    """How a function is bound when it is read off an instance: ``instance``, ``class``, ``static`` or ``property``."""
    for decorator in getattr(node, "decorator_list", ()):
        path = dotted_path(decorator) or ""
        last = path.rpartition(".")[2]
        if last == "staticmethod":
            return "static"
        if last == "classmethod":
            return "class"
        if last in ("property", "cached_property"):
            return "property"
    return "class" if name == "__new__" else "instance"
