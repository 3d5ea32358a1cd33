"""The loops over batches in a block, and which part of their bodies all ranks have to run together."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from .backwards import goes_backward
from .file import File

_TOGETHER = ("step", "backward", "update", "zero_grad")
"""Methods of losses, optimizers, schedulers and scalers whose calls have to be the same on all ranks."""
_DEEPEST = 3
"""How many functions below a loop a step is looked for."""


@dataclass(frozen=True)
class TrainingLoop:
    """A loop over batches that trains; ``in_epochs`` where one over epochs is around it, ``is_called`` in another function."""

    file: File
    node: ast.For
    in_epochs: bool
    is_called: bool = False


def training_loops(file: File, call: ast.Call) -> list[TrainingLoop]:
    """The loops that train in the context that ``call`` makes: in its ``with`` block, else in its function, else called there."""
    body = _block(file, call)
    loops = [TrainingLoop(file, *found) for statement in body for found in _loops_in(file, statement, False)]
    if loops:
        return loops
    calls = [n for statement in body for n in ast.walk(statement) if isinstance(n, ast.Call)]
    called = dict.fromkeys(function for each in calls for function in file.program.callees(file, each))
    for owner, function in map(file.program.function_node, called):
        statements = function.body if isinstance(function, (ast.FunctionDef, ast.AsyncFunctionDef)) else []
        loops += [TrainingLoop(owner, *found, is_called=True) for s in statements for found in _loops_in(owner, s, False)]
    return loops


def _block(file: File, call: ast.Call) -> list[ast.stmt]:
    """What runs in a context: the block of its ``with``, or the whole function where it is entered in another way."""
    inside: ast.AST = call
    for around in file.ancestors(call):
        if isinstance(around, (ast.With, ast.AsyncWith)) and any(inside is item for item in around.items):
            return around.body
        if isinstance(around, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Module)):
            return around.body
        inside = around
    return []


def _loops_in(file: File, node: ast.AST, in_epochs: bool) -> list[tuple[ast.For, bool]]:
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)):
        return []
    below = in_epochs or isinstance(node, ast.For)
    inner = [found for child in ast.iter_child_nodes(node) for found in _loops_in(file, child, below)]
    if isinstance(node, ast.For) and goes_backward(file, node) and not (inner and _counts(node.iter)):
        return [(node, in_epochs)]
    return inner


def _counts(iterable: ast.expr) -> bool:
    """Whether a loop runs over numbers, as those over epochs do."""
    if isinstance(iterable, ast.Call) and isinstance(iterable.func, ast.Name) and iterable.func.id in ("tqdm", "trange"):
        return iterable.func.id == "trange" or bool(iterable.args and _counts(iterable.args[0]))
    return isinstance(iterable, ast.Call) and isinstance(iterable.func, ast.Name) and iterable.func.id == "range"


def batches_of(loop: ast.For) -> ast.expr:
    """What gives the batches: inside of ``enumerate``, so that numbers go on; around anything else."""
    outer, current = loop.iter, loop.iter
    while isinstance(current, ast.Call) and current.args:
        if isinstance(current.func, ast.Name) and current.func.id == "enumerate":
            return current.args[0]
        current = current.args[0]
    return outer


def last_shared_statement(file: File, loop: ast.For, models: Sequence[str]) -> ast.stmt | None:
    """The last statement of the body that all ranks have to run, or None where nothing of a rank's own stands behind it.

    Shared is what names a model, or anything that a step is made with, calls a method of the object that holds them or a
    function that makes a step, or leaves the loop. None too where no call of ``step`` is seen: it might stand behind.
    """
    if not any("step" in _made_in(file, statement) for statement in loop.body):
        return None
    stepping = [ast.unparse(method.value) for method in _stepping(loop) if method.attr != "backward"]
    bound = [a.targets[0] for a in ast.walk(loop) if isinstance(a, ast.Assign) and a.value in set(_stepping(loop))]
    shared_names = {*models, *stepping, *map(ast.unparse, bound)}
    holders = {name.split(".")[0] for name in shared_names if "." in name}
    shared = [
        statement
        for statement in loop.body
        if _leaves(statement)
        or any(_made_in(file, statement))
        or _mentions(statement, shared_names)
        or _calls_method_of(statement, holders)
    ]
    return shared[-1] if shared and shared[-1] is not loop.body[-1] else None


def does_more(loop: ast.For) -> bool:
    """Whether the body counts, or calls something for what it does, beside what a step is made with."""
    stepping = set(_stepping(loop))
    calls = (n.value.func for n in ast.walk(loop) if isinstance(n, ast.Expr) and isinstance(n.value, ast.Call))
    return any(isinstance(n, ast.AugAssign) for n in ast.walk(loop)) or any(func not in stepping for func in calls)


def _stepping(node: ast.AST) -> Iterator[ast.Attribute]:
    """Methods as ``optimizer.step``, called or not; ``update`` of a scaler has no arguments, that of a meter has."""
    meters = {n.func for n in ast.walk(node) if isinstance(n, ast.Call) and n.args}
    for method in ast.walk(node):
        if isinstance(method, ast.Attribute) and method.attr in _TOGETHER and not (method.attr == "update" and method in meters):
            yield method


def _made_in(file: File, node: ast.AST, depth: int = 0) -> Iterator[str]:
    """The names of such methods below a node, and in functions that are called there."""
    yield from (method.attr for method in _stepping(node))
    calls = [n for n in ast.walk(node) if isinstance(n, ast.Call)] if depth < _DEEPEST else []
    for value in (value for call in calls for value in file.program.callees(file, call)):
        yield from _made_in(*file.program.function_node(value), depth + 1)


def _mentions(statement: ast.stmt, names: set[str]) -> bool:
    return any(isinstance(n, (ast.Name, ast.Attribute)) and ast.unparse(n) in names for n in ast.walk(statement))


def _calls_method_of(statement: ast.stmt, holders: set[str]) -> bool:
    functions = [n.func for n in ast.walk(statement) if isinstance(n, ast.Call)]
    return any(isinstance(f, ast.Attribute) and isinstance(f.value, ast.Name) and f.value.id in holders for f in functions)


def _leaves(statement: ast.stmt) -> bool:
    return any(isinstance(n, (ast.Break, ast.Return)) for n in ast.walk(statement))
