"""Places where a model is always sharded: behind the condition of its wrap, or in a function that is defined behind the wrap."""

from __future__ import annotations

import ast

from ..flow.values import Wrapped
from .answers import Sharding
from .file import File
from .program import Program


def sharded_by_place(program: Program, file: File, node: ast.AST, sharding: Sharding) -> bool:
    """Whether a model is surely sharded where it is read, by the tests and functions around."""
    return _by_condition(program, file, node, sharding) or _in_front_of_function(program, file, node, sharding)


def _by_condition(program: Program, file: File, node: ast.AST, sharding: Sharding) -> bool:
    """Whether a place stands behind a test that the wrap stands behind as well, in the same file, with nothing changed.

    ``if ddp: model = DDP(model)`` makes ``model`` sharded behind every other ``if ddp:``.
    """
    if not isinstance(sharding.value, Wrapped) or program.flow.file_of_call(sharding.value.site) != file.index:
        return False
    _, call = program.call_node(sharding.value.site)
    wanted = _tests(file, call)
    found = _tests(file, node)
    return bool(wanted) and wanted <= found and all(_is_settled(file, test) for test in wanted)


def _in_front_of_function(program: Program, file: File, node: ast.AST, sharding: Sharding) -> bool:
    """Whether a function reads a variable of the one around it, which is wrapped in front of it and not bound behind.

    After ``model = DDP(model)``, ``model`` is sharded in each function that is defined there.
    """
    model = node.value if isinstance(node, ast.Attribute) else node
    if not isinstance(model, ast.Name) or not isinstance(sharding.value, Wrapped):
        return False
    if program.flow.file_of_call(sharding.value.site) != file.index:
        return False
    _, call = program.call_node(sharding.value.site)
    wrap = file.parents[call]
    if not isinstance(wrap, ast.Assign) or not any(isinstance(t, ast.Name) and t.id == model.id for t in wrap.targets):
        return False
    block, index = file.block_of(wrap)
    around = set(file.ancestors(node))
    inner = next((s for s in block[index + 1 :] if s in around), None)
    outer = file.function(wrap)
    if inner is None or file.function(node) is outer:
        return False
    behind = (n for n in ast.walk(outer or file.tree) if getattr(n, "lineno", 0) > wrap.lineno)
    bound = {n.arg if isinstance(n, ast.arg) else n.id for n in behind
             if isinstance(n, ast.arg) or (isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store))}  # fmt: skip
    return model.id not in bound


def _tests(file: File, node: ast.AST) -> set[str]:
    """The tests that have to hold for a place to be reached, as dumps."""
    found: set[str] = set()
    inside: ast.AST = node
    for around in file.ancestors(node):
        holds_body = isinstance(around, ast.If) and any(inside is statement for statement in around.body)
        if holds_body or (isinstance(around, ast.IfExp) and inside is around.body):
            assert isinstance(around, (ast.If, ast.IfExp))
            found |= _parts(around.test)
        elif isinstance(around, ast.BoolOp) and isinstance(around.op, ast.And) and inside in around.values:
            for part in around.values[: around.values.index(inside)]:  # type: ignore[arg-type]
                found |= _parts(part)
        inside = around
    return found


def _parts(test: ast.expr) -> set[str]:
    if isinstance(test, ast.BoolOp) and isinstance(test.op, ast.And):
        return set().union(*(_parts(part) for part in test.values))
    return {ast.dump(test)}


def _is_settled(file: File, test: str) -> bool:
    """Whether a test reads only names and attributes that the file assigns once, or never."""
    names = set()
    for node in ast.walk(file.tree):
        if isinstance(node, ast.expr) and ast.dump(node) == test:
            if any(isinstance(n, ast.Call) for n in ast.walk(node)):
                return False
            names |= {n.id for n in ast.walk(node) if isinstance(n, ast.Name)}
            break
    stores = [n.id for n in file.nodes(ast.Name) if isinstance(n.ctx, ast.Store) and n.id in names]
    attributes = [
        n for n in file.nodes(ast.Attribute)
        if isinstance(n.ctx, ast.Store) and ast.dump(n).replace("Store()", "Load()") in test
    ]  # fmt: skip
    return len(stores) <= len(set(stores)) and len(attributes) <= 1
