"""Objects that come from where values are not followed: all attributes of an object, one by a computed name, a queue."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from ..view import FileView

_SAME_ELEMENTS = frozenset({"list", "tuple", "dict", "sorted", "iter", "reversed", "enumerate", "filter", "next"})
_MOST_NAMES = 4
"""How many names an object may have had on its way."""


def is_an_attribute(view: FileView, receiver: ast.expr) -> bool:
    """Whether it is one of ``vars(owner)`` or ``owner.__dict__``, or ``getattr(owner, name)`` of a computed name."""
    return any(_takes_attributes(source) for source in _sources(view, receiver, _MOST_NAMES))


def is_from_queue(view: FileView, receiver: ast.expr) -> bool:
    """Whether it, or what it is a part of, was taken from a queue: ``jobs.get()``."""
    return any(_takes_from_queue(source) for source in _sources(view, receiver, _MOST_NAMES))


def is_out_of_sight(view: FileView, receiver: ast.expr) -> bool:
    """Whether it comes from any such place."""
    return is_an_attribute(view, receiver) or is_from_queue(view, receiver)


def _takes_attributes(source: ast.expr) -> bool:
    if isinstance(source, ast.Attribute):
        return source.attr == "__dict__"
    if not isinstance(source, ast.Call) or not isinstance(source.func, ast.Name):
        return False
    name, arguments = source.func.id, source.args
    if name == "vars":
        return len(arguments) == 1
    return name == "getattr" and len(arguments) > 1 and not isinstance(arguments[1], ast.Constant)


def _takes_from_queue(source: ast.expr) -> bool:
    if not isinstance(source, ast.Call) or not isinstance(source.func, ast.Attribute):
        return False
    if source.func.attr not in ("get", "get_nowait"):
        return False
    # what a mapping is asked for is no truth value
    return not source.args or (isinstance(source.args[0], ast.Constant) and isinstance(source.args[0].value, bool))


def _sources(view: FileView, node: ast.expr, names: int) -> Iterator[ast.expr]:
    """An expression and all that its object, or the container of it, may come from in its function."""
    yield node
    if isinstance(node, ast.Name):
        if names > 0:
            for given in _given(view, node):
                yield from _sources(view, given, names - 1)
    elif isinstance(node, (ast.Subscript, ast.NamedExpr)) or (isinstance(node, ast.Attribute) and node.attr == "module"):
        yield from _sources(view, node.value, names)
    elif isinstance(node, ast.IfExp):
        yield from _sources(view, node.body, names)
        yield from _sources(view, node.orelse, names)
    elif isinstance(node, ast.Call):
        if isinstance(node.func, ast.Attribute) and node.func.attr in ("items", "values", "copy", "get", "pop"):
            yield from _sources(view, node.func.value, names)
        elif isinstance(node.func, ast.Name) and node.func.id in _SAME_ELEMENTS:
            for argument in node.args:
                yield from _sources(view, argument, names)


def _given(view: FileView, name: ast.Name) -> Iterator[ast.expr]:
    """What a name is assigned in its function, and what it goes over in loops and comprehensions."""
    function = view.function(name)
    for node in view.nodes(ast.Name):
        if node.id != name.id or not isinstance(node.ctx, ast.Store) or view.function(node) is not function:
            continue
        parent: ast.AST = view.parents[node]
        while isinstance(parent, (ast.Tuple, ast.List, ast.Starred)):
            parent = view.parents[parent]
        if isinstance(parent, (ast.Assign, ast.NamedExpr, ast.AnnAssign)):
            if parent.value is not None:
                yield parent.value
        elif isinstance(parent, (ast.For, ast.AsyncFor, ast.comprehension)):
            yield parent.iter
