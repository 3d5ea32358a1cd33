"""Where classes that code hands on by name are asked for: ``isinstance(model, wrappers)``, in any file."""

from __future__ import annotations

import ast

from ..flow.values import Container, External, Value
from .file import File
from .program import Program

TESTS = frozenset({"builtins.isinstance", "builtins.issubclass"})


def tests_of(file: File, classes: ast.expr) -> list[tuple[File, ast.Call]]:
    """The tests that get a class, or the tuple of classes that an expression is, by another name: a variable or a parameter.

    Empty where the class may be called under such a name as well.
    """
    tests = file.program.once(_tests_by_class)
    if isinstance(classes, (ast.Tuple, ast.List, ast.Set)):
        variable = file.variable(classes)
        given = [value for value in file.values(classes) if isinstance(value, Container) and value.variable == variable]
    else:
        given = [value for value in file.values(classes) if isinstance(value, External)]
    found = list(dict.fromkeys(test for value in given for test in tests.get(value, ())))
    return [] if any(_is_called(other, call.args[1]) for other, call in found) else found


def _tests_by_class(program: Program) -> dict[Value, list[tuple[File, ast.Call]]]:
    """The tests whose classes are not written out, by what they may be given: classes, and containers of some."""
    found: dict[Value, list[tuple[File, ast.Call]]] = {}
    for file in map(program.file, program.relevant_files()):
        for call in file.nodes(ast.Call):
            asked = call.args[1] if len(call.args) == 2 else None
            if getattr(call.func, "id", "") not in ("isinstance", "issubclass"):
                continue
            if not isinstance(asked, (ast.Name, ast.Attribute)) or _is_written_out(file, asked):
                continue
            if file.external(call.func) in TESTS:
                for value in file.values(asked):
                    found.setdefault(value, []).append((file, call))
    return found


def _is_written_out(file: File, asked: ast.Name | ast.Attribute) -> bool:
    """Whether the name of a class is the one that an import gives it: such a test is a site of its own."""
    return isinstance(asked, ast.Name) and asked.id in file.imported_names


def _is_called(file: File, name: ast.expr) -> bool:
    return any(ast.unparse(call.func) == ast.unparse(name) for call in file.nodes(ast.Call))
