"""Code that takes one wrapper off after another: a loop over ``x = x.module``, or a function that calls itself with it.

A sharded model is its own module, so that code must see for itself that it gets no further.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from .file import File


def deciding_test(file: File, attribute: ast.Attribute) -> ast.expr | None:
    """The test behind which ``x.module`` takes the place of ``x`` again and again; None where it does so once, or untested."""
    for around in _blocks_around(file, attribute):
        if isinstance(around, (ast.If, ast.IfExp, ast.While)):
            return None if isinstance(around.test, ast.Constant) else around.test
    return None


def ends_by_exception(file: File, attribute: ast.Attribute) -> bool:
    """Whether code goes on until ``x.module`` raises AttributeError, which a sharded model does at once."""
    for around in _blocks_around(file, attribute):
        if isinstance(around, ast.Try):
            caught = [ast.unparse(handler.type) if handler.type is not None else "Exception" for handler in around.handlers]
            return any("AttributeError" in each or "Exception" in each for each in caught)
    return False


def _blocks_around(file: File, attribute: ast.Attribute) -> Iterator[ast.AST]:
    """The statements and choices of its function that have repeated unwrapping in their body, from the innermost on."""
    if not (_is_assigned_in_loop(file, attribute) or recursive_call(file, attribute) is not None):
        return
    inside: ast.AST = attribute
    for around in file.ancestors(attribute):
        if isinstance(around, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
            return
        body = getattr(around, "body", None)
        if inside is body or (isinstance(body, list) and inside in body):
            yield around
        inside = around


def recursive_call(file: File, attribute: ast.Attribute) -> ast.Call | None:
    """The call that a function makes of itself, with ``x.module`` as an argument, if it returns ``x`` elsewhere."""
    call, function = file.parents[attribute], file.function(attribute)
    call = file.parents[call] if isinstance(call, ast.keyword) else call
    if not isinstance(call, ast.Call) or call.func is attribute or not isinstance(function, ast.FunctionDef):
        return None
    if not any(file.program.function_node(callee)[1] is function for callee in file.program.callees(file, call)):
        return None
    returned = [n.value for n in ast.walk(function) if isinstance(n, ast.Return) and n.value is not None]
    returned += [part for value in returned if isinstance(value, ast.IfExp) for part in (value.body, value.orelse)]
    return call if any(ast.dump(value) == ast.dump(attribute.value) for value in returned) else None


def _is_assigned_in_loop(file: File, attribute: ast.Attribute) -> bool:
    """Whether ``x = x.module`` stands in a ``while``; a ``for`` ends by itself."""
    statement = file.statement(attribute)
    if not isinstance(statement, ast.Assign) or statement.value is not attribute or len(statement.targets) != 1:
        return False
    if ast.unparse(statement.targets[0]) != ast.unparse(attribute.value):
        return False
    for around in file.ancestors(statement):
        if isinstance(around, (ast.FunctionDef, ast.AsyncFunctionDef, ast.For, ast.AsyncFor, ast.While)):
            return isinstance(around, ast.While)
    return False
