"""Objects that come from where values are not followed: all attributes of an object, one by a computed name, a queue."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import TypeGuard

from ..view import FileView

_SAME_ELEMENTS = frozenset({"list", "tuple", "dict", "sorted", "iter", "reversed", "enumerate", "filter", "next"})
_MOST_NAMES = 4
"""How many names an object may have had on its way."""


def is_an_attribute(view: FileView, receiver: ast.expr) -> bool:
    """Whether it is one of ``vars(owner)`` or ``owner.__dict__``, or ``getattr(owner, name)`` of a computed name."""
    return any(_takes_attributes(source) for source in _sources(view, receiver, _MOST_NAMES))


def owners(view: FileView, receiver: ast.expr) -> list[ast.expr]:
    """The objects among whose attributes it may be."""
    found: list[ast.expr] = []
    for source in _sources(view, receiver, _MOST_NAMES):
        if _takes_attributes(source):
            found.append(source.value if isinstance(source, ast.Attribute) else source.args[0])
    return found


def is_from_queue(view: FileView, receiver: ast.expr) -> bool:
    """Whether it, or what it is a part of, was taken from a queue: ``jobs.get()``."""
    return any(_takes_from_queue(source) for source in _sources(view, receiver, _MOST_NAMES))


def is_out_of_sight(view: FileView, receiver: ast.expr) -> bool:
    """Whether it comes from any such place."""
    return is_an_attribute(view, receiver) or is_from_queue(view, receiver)


def asked_names(view: FileView, receiver: ast.expr) -> list[str]:
    """The names that an attribute by a computed name has where its branch runs: those that the name is tested to equal."""
    computed = {ast.dump(s.args[1]) for s in _sources(view, receiver, _MOST_NAMES) if _is_getattr(s)}
    names: list[str] = []
    below: ast.AST = receiver
    for ancestor in view.ancestors(receiver):
        if isinstance(ancestor, ast.If) and below in ancestor.body:
            names.extend(_equal_to(ancestor.test, computed))
        below = ancestor
    return names


def _equal_to(test: ast.expr, computed: set[str]) -> Iterator[str]:
    if not isinstance(test, ast.Compare) or len(test.ops) != 1 or not isinstance(test.ops[0], ast.Eq):
        return
    (name,) = test.comparators
    if ast.dump(test.left) in computed and isinstance(name, ast.Constant) and isinstance(name.value, str):
        yield name.value


def _takes_attributes(source: ast.expr) -> TypeGuard[ast.Attribute | ast.Call]:
    if isinstance(source, ast.Attribute):
        return source.attr == "__dict__"
    return _is_getattr(source) or (
        isinstance(source, ast.Call) and isinstance(source.func, ast.Name) and source.func.id == "vars" and len(source.args) == 1
    )


def _is_getattr(source: ast.expr) -> TypeGuard[ast.Call]:
    if not isinstance(source, ast.Call) or not isinstance(source.func, ast.Name) or source.func.id != "getattr":
        return False
    return len(source.args) > 1 and not isinstance(source.args[1], ast.Constant)


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
    elif isinstance(node, (ast.ListComp, ast.SetComp, ast.GeneratorExp, ast.DictComp)):
        yield from _sources(view, node.value if isinstance(node, ast.DictComp) else node.elt, names)
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
