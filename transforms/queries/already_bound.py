"""Names that a model has in front of its wrap, and that stand for the sharded model behind it: sharding is in place."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator

from ..facts.symbols import DDP
from .file import File


def is_already_bound(file: File, assign: ast.Assign) -> bool:
    """Whether ``name = model.module`` behind a wrap that a test decides about says no more than ``name = model`` in front."""
    target, value = assign.targets[0], assign.value
    around = file.parents[assign]
    if not isinstance(target, ast.Name) or not isinstance(value, ast.Attribute) or not isinstance(value.value, ast.Name):
        return False
    if len(assign.targets) > 1 or not isinstance(around, ast.If) or assign not in around.body:
        return False
    model, inside = value.value.id, set(around.body)
    for statement in _in_front(file, assign):
        stored = {n.id for n in ast.walk(statement) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
        if target.id in stored:
            return _says(statement, target.id, model)
        if model in stored and not (statement in inside and _wraps(file, statement, model)):
            return False
    return False


def _in_front(file: File, statement: ast.stmt) -> Iterator[ast.stmt]:
    """The statements that have run when one does, last ones first: of its block, and of those around the tests in front of it."""
    while True:
        block, place = file.block_of(statement)
        yield from reversed(block[:place])
        around = file.parents[statement]
        if not isinstance(around, ast.If):
            return
        statement = around


def _says(statement: ast.stmt, name: str, model: str) -> bool:
    return isinstance(statement, ast.Assign) and ast.unparse(statement) == f"{name} = {model}"


def _wraps(file: File, statement: ast.stmt, model: str) -> bool:
    if not isinstance(statement, ast.Assign) or not isinstance(statement.value, ast.Call):
        return False
    given = statement.value.args[:1]
    return file.external(statement.value.func) == DDP and _names(given) == [model] == _names(statement.targets)


def _names(nodes: Iterable[ast.expr]) -> list[str]:
    return [node.id if isinstance(node, ast.Name) else "" for node in nodes]
