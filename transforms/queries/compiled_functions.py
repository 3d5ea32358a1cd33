"""Functions that torch.compile traces, where a sharded parameter is a DTensor for all that is computed with it, and those
that TorchScript compiles, which calls nothing it cannot compile as well."""

from __future__ import annotations

import ast
from collections.abc import Collection

from ..flow.values import Bound, FunctionValue, Value
from .file import File
from .program import Program

_COMPILE = frozenset({"torch.compile"})
_SCRIPT = frozenset({"torch.jit.script", "torch.jit.export", "torch.jit.script_method"})


def is_compiled(file: File, node: ast.AST) -> bool:
    """Whether a place stands in a function that is given to torch.compile, or in one that such a function calls."""
    compiled = file.program.once(_compiled)
    return any(around in compiled for around in file.ancestors(node))


def is_scripted(file: File, node: ast.AST) -> bool:
    """Whether TorchScript compiles the function around a place, as one of a model that is scripted may be called by it."""
    scripted = file.program.once(_scripted)
    return any(around in scripted for around in file.ancestors(node))


def _compiled(program: Program) -> frozenset[ast.AST]:
    return _called_from(program, "compile", _COMPILE)


def _scripted(program: Program) -> frozenset[ast.AST]:
    return _called_from(program, "jit", _SCRIPT)


def _called_from(program: Program, word: str, compilers: Collection[str]) -> frozenset[ast.AST]:
    """The functions that compilers get, and all that these call."""
    pending: list[tuple[File, ast.AST]] = []
    for index in program.relevant_files():
        file = program.file(index)
        if word not in file.source.text:
            continue
        for function in file.nodes(ast.FunctionDef, ast.AsyncFunctionDef):
            if any(_names(file, decorator, compilers) for decorator in function.decorator_list):
                pending.append((file, function))
        for call in file.nodes(ast.Call):
            given = file.values(call.args[0]) if call.args and file.external(call.func) in compilers else []
            pending += [program.function_node(value) for value in map(_function_of, given) if value is not None]
    found: set[ast.AST] = set()
    while pending:
        file, function = pending.pop()
        if function not in found:
            found.add(function)
            calls = (n for n in ast.walk(function) if isinstance(n, ast.Call))
            pending += [program.function_node(value) for call in calls for value in program.callees(file, call)]
    return frozenset(found)


def _function_of(value: Value) -> FunctionValue | None:
    function = value.function if isinstance(value, Bound) else value
    return function if isinstance(function, FunctionValue) else None


def _names(file: File, decorator: ast.expr, compilers: Collection[str]) -> bool:
    return file.external(decorator.func if isinstance(decorator, ast.Call) else decorator) in compilers
