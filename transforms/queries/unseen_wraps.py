"""Calls that make objects of any class of a registry, of which a wrapper is one: ``cls(**config)``."""

from __future__ import annotations

import ast

from ..flow.values import ClassValue, External, FunctionValue, Wrapped
from .file import File
from .program import Program


def wraps_nothing_seen(program: Program, value: Wrapped) -> bool:
    """Whether a wrapper is only what a call might make among other classes, and nothing hands on a module by that name.

    A registry that keeps wrappers to ask for them has them made of no configuration.
    """
    if value.site < 0 or not program.is_written_as_call(value.site):
        return False
    file, call = program.call_node(value.site)
    if call.args or all(keyword.arg is not None for keyword in call.keywords) or _has_module(file, call):
        return False
    classes = [v for v in file.called_values(call) if isinstance(v, (ClassValue, External))]
    return len(classes) > 1 and not program.once(_gives_modules_by_name)


def _gives_modules_by_name(program: Program) -> bool:
    """Whether some ``module=model``, ``{"module": model}`` or ``config["module"] = model`` stands in a program."""
    return any(
        any(_has_module(file, call) for call in file.nodes(ast.Call))
        or any(_is_name(key) for made in file.nodes(ast.Dict) for key in made.keys)
        or any(_is_name(item.slice) for item in file.nodes(ast.Subscript) if isinstance(item.ctx, ast.Store))
        or any(_is_set(item) for item in file.nodes(ast.Attribute))
        or any(_is_name(one) for call in file.nodes(ast.Call) for one in call.args[:1])
        for file in map(program.file, program.relevant_files())
        if "module" in file.source.text
    )


def _has_module(file: File, call: ast.Call) -> bool:
    if "register" in ast.unparse(call.func):
        return False  # a class, under a name
    given = [keyword.value for keyword in call.keywords if keyword.arg == "module"]
    values = [v for one in given for v in file.values(one)]
    return bool(given) and not (values and all(isinstance(v, (ClassValue, External, FunctionValue)) for v in values))


def _is_set(node: ast.Attribute) -> bool:
    """``config.module = model``; wrappers of the repository set their own."""
    return node.attr == "module" and isinstance(node.ctx, ast.Store) and getattr(node.value, "id", "") != "self"


def _is_name(node: ast.expr | None) -> bool:
    return isinstance(node, ast.Constant) and node.value == "module"
