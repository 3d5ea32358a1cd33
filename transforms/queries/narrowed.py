"""Places that only wrapped models come to: behind ``isinstance(model, DDP)``, asked there or in a function of the repository."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from ..facts.symbols import WRAPPERS
from .file import File


def wrapper_asked_for(file: File, place: ast.AST, model: ast.expr) -> str | None:
    """The kind of wrapper, ``DDP`` or ``FSDP1``, that a condition around a place asks of a model; None without one."""
    text = ast.unparse(model)
    for test in _conditions(file, place):
        for part in test.values if isinstance(test, ast.BoolOp) and isinstance(test.op, ast.And) else [test]:
            if isinstance(part, ast.Call) and part.args and ast.unparse(part.args[0]) == text and (kind := _asks(file, part)):
                return kind
    return None


def _conditions(file: File, place: ast.AST) -> Iterator[ast.expr]:
    """What has to be true for a place to be reached, as far as statements and operators around it say so."""
    inside = place
    for around in file.ancestors(place):
        if isinstance(around, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            return
        if isinstance(around, ast.BoolOp) and isinstance(around.op, ast.And) and inside in around.values:
            yield from around.values[: around.values.index(inside)]  # type: ignore[arg-type]
        elif isinstance(around, ast.IfExp | ast.If | ast.While):
            body = [around.body] if isinstance(around, ast.IfExp) else around.body
            if inside in body:
                yield around.test
        inside = around


def _asks(file: File, test: ast.Call) -> str | None:
    """The wrapper that a test asks for, itself or by a function that returns such a test of its parameter."""
    if file.external(test.func) == "builtins.isinstance" and len(test.args) == 2:
        asked = test.args[1].elts if isinstance(test.args[1], ast.Tuple) else [test.args[1]]
        kinds = {WRAPPERS.get(file.external(each) or "") for each in asked}
        return kinds.pop() if len(kinds) == 1 else None
    for owner, function in (file.program.function_node(value) for value in file.program.callees(file, test)):
        if isinstance(function, ast.FunctionDef) and function.args.args:
            returned = [n.value for n in ast.walk(function) if isinstance(n, ast.Return)]
            own = returned[0] if len(returned) == 1 else None
            parameter = function.args.args[0].arg
            if isinstance(own, ast.Call) and own is not test and own.args and ast.unparse(own.args[0]) == parameter:
                return _asks(owner, own)
    return None
