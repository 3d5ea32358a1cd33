"""Where classes that code hands on by name are asked for: ``isinstance(model, wrappers)``, in any file."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from ..flow.values import Container, External
from .file import File

TESTS = frozenset({"builtins.isinstance", "builtins.issubclass"})


def tests_of(file: File, classes: ast.expr) -> list[tuple[File, ast.Call]]:
    """The tests that get a class, or the tuple of classes that an expression is, by another name: a variable or a parameter.

    Empty where the class may be called under such a name as well.
    """
    if isinstance(classes, (ast.Tuple, ast.List, ast.Set)):
        variable = file.variable(classes)
        given = {value for value in file.values(classes) if isinstance(value, Container) and value.variable == variable}
    else:
        given = {value for value in file.values(classes) if isinstance(value, External)}
    found = [(other, call) for other, call in _tests(file) if not given.isdisjoint(other.values(call.args[1]))]
    return [] if any(_is_called(other, call.args[1]) for other, call in found) else found


def _tests(file: File) -> Iterator[tuple[File, ast.Call]]:
    """The tests of the repository whose classes are not written out."""
    program = file.program
    for other in map(program.file, program.relevant_files()):
        for call in other.nodes(ast.Call):
            asked = call.args[1] if len(call.args) == 2 else None
            is_named = isinstance(asked, (ast.Name, ast.Attribute)) and not _is_written_out(other, asked)
            if is_named and getattr(call.func, "id", "") in ("isinstance", "issubclass") and other.external(call.func) in TESTS:
                yield other, call


def _is_written_out(file: File, asked: ast.Name | ast.Attribute) -> bool:
    """Whether the name of a class is the one that an import gives it: such a test is a site of its own."""
    return isinstance(asked, ast.Name) and asked.id in file.imported_names


def _is_called(file: File, name: ast.expr) -> bool:
    return any(ast.unparse(call.func) == ast.unparse(name) for call in file.nodes(ast.Call))
