"""Functions that torch.compile traces, where a sharded parameter is a DTensor for all that is computed with it."""

from __future__ import annotations

import ast

from ..flow.values import Bound, FunctionValue
from .file import File
from .program import Program

_COMPILE = "torch.compile"


def is_compiled(file: File, node: ast.AST) -> bool:
    """Whether a place stands in a function that is given to torch.compile, or in one that such a function calls."""
    compiled = file.program.once(_compiled)
    return any(around in compiled for around in file.ancestors(node))


def _compiled(program: Program) -> frozenset[ast.AST]:
    pending: list[tuple[File, ast.AST]] = []
    for index in program.relevant_files():
        file = program.file(index)
        if "compile" not in file.source.text:
            continue
        for function in file.nodes(ast.FunctionDef, ast.AsyncFunctionDef):
            if any(_names_compile(file, decorator) for decorator in function.decorator_list):
                pending.append((file, function))
        for call in file.nodes(ast.Call):
            given = file.values(call.args[0]) if call.args and file.external(call.func) == _COMPILE else []
            functions = [v.function if isinstance(v, Bound) else v for v in given]
            pending += [program.function_node(v) for v in functions if isinstance(v, FunctionValue)]
    found: set[ast.AST] = set()
    while pending:
        file, function = pending.pop()
        if function not in found:
            found.add(function)
            calls = (n for n in ast.walk(function) if isinstance(n, ast.Call))
            pending += [program.function_node(value) for call in calls for value in program.callees(file, call)]
    return frozenset(found)


def _names_compile(file: File, decorator: ast.expr) -> bool:
    return file.external(decorator.func if isinstance(decorator, ast.Call) else decorator) == _COMPILE
