"""Models that helpers of the tool keep whole: in computations, or in their state dicts."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from .assignments import assigned_values
from .file import File, Function
from .program import Program
from .sharded_models import ShardCall, ShardCalls


class HeldWhole:
    """Which calls of ``fully_shard`` stand beside a call of such a helper, in the same function."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self._helped: dict[tuple[int, str], dict[Function | None, list[ast.Call]]] = {}

    def with_all(self, helper: str, calls: ShardCalls) -> bool:
        """Whether a helper that is for all sharded tensors, whatever it is given, is called wherever a model may be sharded."""
        return bool(calls) and all(self._beside(helper, call) for call in calls)

    def by(self, helper: str, calls: ShardCalls) -> bool:
        """Whether a helper is given a model wherever that may be sharded, or the whole that it is a part of."""
        return bool(calls) and all(self._is_given(self._beside(helper, call), call) for call in calls)

    def _beside(self, helper: str, call: ShardCall) -> list[ast.Call]:
        """The calls of a helper in the function of a call."""
        key = call.file.index, helper
        if key not in self._helped:
            found: dict[Function | None, list[ast.Call]] = {}
            for node in call.file.nodes(ast.Call):
                if isinstance(node.func, ast.Name) and node.func.id == helper:
                    found.setdefault(call.file.function(node), []).append(node)
            self._helped[key] = found
        return self._helped[key].get(call.file.function(call.node), [])

    def _is_given(self, helped: list[ast.Call], call: ShardCall) -> bool:
        if not helped or call.model is None:
            return False
        owners = {ast.unparse(owner) for owner in _owners(call.file, call.model, set())}
        return any(bool(node.args) and ast.unparse(node.args[0]) in owners for node in helped)


def _owners(file: File, node: ast.expr, seen: set[str]) -> Iterator[ast.expr]:
    """An expression for a model, and those for what it is a part of: it may be read out of that, or run over its parts."""
    text = ast.unparse(node)
    if text in seen:
        return
    seen.add(text)
    yield node
    if isinstance(node, (ast.Attribute, ast.Subscript, ast.Starred)):
        yield from _owners(file, node.value, seen)
    elif isinstance(node, (ast.List, ast.Tuple)):
        for part in node.elts:
            yield from _owners(file, part, seen)
    elif isinstance(node, ast.Call):
        for part in [node.func, *node.args] if isinstance(node.func, ast.Attribute) else node.args:
            yield from _owners(file, part, seen)
    if isinstance(node, ast.Name):
        for loop in ast.walk(file.function(node) or file.tree):
            if isinstance(loop, (ast.For, ast.comprehension)) and _binds(loop.target, node.id):
                yield from _owners(file, loop.iter, seen)
    if isinstance(node, (ast.Name, ast.Attribute)):
        for value in assigned_values(file, node):
            if isinstance(value, (ast.Name, ast.Attribute, ast.Subscript)):  # what a call gives is another model
                yield from _owners(file, value, seen)


def _binds(target: ast.expr, name: str) -> bool:
    return any(isinstance(node, ast.Name) and node.id == name for node in ast.walk(target))
