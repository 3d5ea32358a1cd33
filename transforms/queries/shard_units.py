"""Calls of ``fully_shard`` on parts of a model: which model, and how the parts are chosen."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from .sharded_models import ShardCall

_ARRANGE = frozenset({"reversed", "list", "tuple", "enumerate", "sorted", "iter", "set"})
_WALKS = frozenset({"modules", "named_modules"})
_ITEMS = frozenset({"children", "named_children", "values", "items"})
_LOOPS = (ast.For, ast.AsyncFor, ast.comprehension)


@dataclass(frozen=True)
class Unit:
    """The part that a call shards.

    ``model`` is what it is a part of. ``is_selection`` says that the parts are blocks out of a longer list of modules, so
    that there are others, and not all that the model has.
    """

    model: ast.expr
    is_selection: bool


def unit_of(call: ShardCall) -> Unit | None:
    """The part of a model that a call shards; None where it shards a model that is given as such."""
    model = call.model
    if isinstance(model, ast.Name):
        return _looped(call, model.id)
    if isinstance(model, ast.Subscript):
        return _part(model.value, is_selection=False)
    if isinstance(model, ast.Attribute):
        return Unit(model.value, is_selection=False)
    return None


def holders(model: ast.expr) -> Iterator[ast.expr]:
    """A model and what it is an attribute of: of ``self.model.encoder`` also ``self.model`` and ``self``."""
    node = model
    yield node
    while isinstance(node, (ast.Attribute, ast.Subscript)):
        node = node.value
        yield node


def _looped(call: ShardCall, name: str) -> Unit | None:
    """The unit that is the variable of a loop."""
    inside: ast.AST = call.node
    for around in call.file.ancestors(call.node):
        loops = getattr(around, "generators", [around])
        for loop in loops:
            if isinstance(loop, _LOOPS) and any(isinstance(n, ast.Name) and n.id == name for n in ast.walk(loop.target)):
                return _iterated(loop.iter, _is_chosen(call, loop, inside))
        if isinstance(around, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
            return None
        inside = around
    return None


def _is_chosen(call: ShardCall, loop: ast.AST, inside: ast.AST) -> bool:
    """Whether a test for a class picks the units out of what the loop runs over."""
    tests: list[ast.expr] = [*getattr(loop, "ifs", ())]
    for around in call.file.ancestors(call.node):
        if around is loop:
            break
        if isinstance(around, ast.If):
            tests.append(around.test)
    return any("isinstance" in ast.unparse(test) or "__class__" in ast.unparse(test) for test in tests)


def _iterated(node: ast.expr, is_chosen: bool) -> Unit | None:
    while isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in _ARRANGE and node.args:
        node = node.args[0]
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and not node.args:
        if node.func.attr in _WALKS:
            return Unit(node.func.value, is_selection=is_chosen)
        if node.func.attr in _ITEMS:
            return _part(node.func.value, is_selection=isinstance(node.func.value, ast.Attribute))
    return _part(node, is_selection=True) if isinstance(node, ast.Attribute) else None


def _part(node: ast.expr, is_selection: bool) -> Unit | None:
    """What a list of parts is an attribute of."""
    return Unit(node.value, is_selection) if isinstance(node, ast.Attribute) else None
