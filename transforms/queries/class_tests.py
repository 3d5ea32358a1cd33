"""Where classes that code hands on by name are asked for: ``isinstance(model, wrappers)``, in any file."""

from __future__ import annotations

import ast

from ..flow.values import Container, Value
from .arguments import parameter_for
from .file import File
from .program import Program

_DEEPEST = 4
TESTS = frozenset({"builtins.isinstance", "builtins.issubclass"})
_ASSERTIONS = frozenset({"assertIsInstance", "assertNotIsInstance"})

Tests = list[tuple[File, ast.Call]]


def tests_of(file: File, classes: ast.expr) -> Tests:
    """The tests that get a class, or the tuple of classes that an expression is, by another name: a variable or a parameter.

    Empty where the class may be called under such a name as well.
    """
    if not isinstance(classes, (ast.Tuple, ast.List, ast.Set)) or is_assertion(file.parents[classes], classes):
        return _tests_of_one(file, classes, 0) or []
    tests, variable = file.program.once(_tests_by_class), file.variable(classes)
    given = [value for value in file.values(classes) if isinstance(value, Container) and value.variable == variable]
    found = list(dict.fromkeys(test for value in given for test in tests.get(value, ())))
    return [] if any(_is_called(other, call.args[1]) for other, call in found) else found


def is_assertion(call: ast.AST, classes: ast.expr) -> bool:
    """Whether this is ``self.assertIsInstance(x, classes)`` of a unit test."""
    return (isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) and call.func.attr in _ASSERTIONS
            and call.args[1:2] == [classes])  # fmt: skip


def asks_for_unseen_classes(program: Program) -> bool:
    """Whether some test in the repository asks for classes out of a registry, or put together in another way."""
    return any(
        file.external(call.func) in TESTS and _is_put_together(file, call.args[1])
        for file in map(program.file, program.relevant_files())
        for call in file.nodes(ast.Call)
        if getattr(call.func, "id", "") in ("isinstance", "issubclass") and len(call.args) == 2
    )


def _is_put_together(file: File, classes: ast.expr) -> bool:
    if isinstance(classes, (ast.Tuple, ast.BinOp)):
        return any(_is_put_together(file, part) for part in ast.iter_child_nodes(classes) if isinstance(part, ast.expr))
    is_type = isinstance(classes, ast.Call) and getattr(classes.func, "id", "") == "type"
    return isinstance(classes, (ast.Call, ast.Subscript, ast.Starred)) and not is_type


def _tests_of_one(file: File, cls: ast.expr, depth: int) -> Tests | None:
    """The tests that a single class comes to, if nothing else is done with it: one object is handed on to many places."""
    above = file.parents[cls]
    call = file.parents[above] if isinstance(above, ast.keyword) else above
    if depth > _DEEPEST:
        return None
    if isinstance(above, ast.Call) and above.args[1:2] == [cls] and file.external(above.func) in TESTS:
        return [(file, above)]
    if is_assertion(above, cls):
        return [(file, above)]  # pyright: ignore[reportReturnType]
    if isinstance(above, ast.IfExp) and cls is not above.test:
        return _tests_of_one(file, above, depth)
    if isinstance(above, ast.arguments):
        function = file.parents[above]
        names = [*above.posonlyargs, *above.args]
        defaults = dict(zip(above.defaults, names[len(names) - len(above.defaults) :], strict=True))
        defaults |= {default: name for default, name in zip(above.kw_defaults, above.kwonlyargs, strict=True) if default}
        return _tests_of_reads(file, function, defaults[cls].arg, depth)
    if isinstance(call, ast.Call) and call.func is not cls:
        functions = [file.program.function_node(callee) for callee in file.program.callees(file, call)]
        found = [_tests_of_argument(owner, node, cls, call, depth) for owner, node in functions]
        return [test for tests in found for test in tests or ()] if found and None not in found else None
    if isinstance(above, ast.Assign) and len(above.targets) == 1 and isinstance(above.targets[0], ast.Name):
        name, function = above.targets[0].id, file.function(above)
        written = [node for node in file.bindings[name] if function is None or file.function(node) is function]
        if len(written) == 1 and (function or file.program.files_by_word.get(name) == [file.index]):
            return _tests_of_reads(file, function or file.tree, name, depth)
    return None


def _tests_of_argument(owner: File, function: ast.AST, cls: ast.expr, call: ast.Call, depth: int) -> Tests | None:
    if not isinstance(function, (ast.FunctionDef, ast.AsyncFunctionDef)):
        return None
    parameter = parameter_for(function, cls, call, owner.enclosing_class(function) is not None)
    return _tests_of_reads(owner, function, parameter, depth) if parameter is not None else None


def _tests_of_reads(file: File, scope: ast.AST, name: str, depth: int) -> Tests | None:
    """The tests that a variable comes to, if it comes to nothing else."""
    uses = (use for use in file.names_by_id.get(name, []) if scope is file.tree or scope in file.ancestors(use))
    reads = [use for use in uses if isinstance(use.ctx, ast.Load)]
    found = [_tests_of_one(file, read, depth + 1) for read in reads]
    return [test for tests in found for test in tests or ()] if None not in found else None


def _tests_by_class(program: Program) -> dict[Value, list[tuple[File, ast.Call]]]:
    """The tests whose classes are not written out, by the containers that they may be given."""
    found: dict[Value, list[tuple[File, ast.Call]]] = {}
    for file in map(program.file, program.relevant_files()):
        for call in file.nodes(ast.Call):
            asked = call.args[1] if len(call.args) == 2 else None
            if getattr(call.func, "id", "") not in ("isinstance", "issubclass"):
                continue
            if not isinstance(asked, (ast.Name, ast.Attribute)) or _is_written_out(file, asked):
                continue
            if file.external(call.func) in TESTS:
                for value in (value for value in file.values(asked) if isinstance(value, Container)):
                    found.setdefault(value, []).append((file, call))
    return found


def _is_written_out(file: File, asked: ast.Name | ast.Attribute) -> bool:
    """Whether the name of a class is the one that an import gives it: such a test is a site of its own."""
    return isinstance(asked, ast.Name) and asked.id in file.imported_names


def _is_called(file: File, name: ast.expr) -> bool:
    return any(ast.unparse(call.func) == ast.unparse(name) for call in file.nodes(ast.Call))
