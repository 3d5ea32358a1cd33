"""Type tests, written out or behind a function of the repository: ``isinstance(model, FSDP)``, ``is_wrapped(model)``."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from ..analysis.scopes import dotted_path
from ..analysis.symbols import FSDP_MODULE, WRAPPERS
from ..analysis.values import External
from ..view import FileView

OF_WRAPPED = frozenset({*WRAPPERS, FSDP_MODULE})
"""The classes that a wrapped model is of, before and after."""


@dataclass(frozen=True)
class TypeTest:
    """A test of the class of ``subject``."""

    subject: ast.expr
    names: frozenset[str]
    """Classes from outside the repository that it surely names."""
    is_whole: bool = True
    """Whether it names no others."""


def type_test(view: FileView, test: ast.expr) -> TypeTest | None:
    """What a test asks: itself, or the one function that it calls and that answers nothing but such a test."""
    own = _written_out(view, test)
    if own is not None or not isinstance(test, ast.Call) or len(test.args) != 1 or test.keywords:
        return own
    callees = view.program.callees(view, test)
    if len(callees) != 1:
        return None
    answer = _answer(*view.program.function_node(callees[0]))
    return TypeTest(test.args[0], answer.names, answer.is_whole) if answer is not None else None


def classes_asked_for(view: FileView, node: ast.expr, of_parts: bool = False) -> frozenset[str]:
    """All classes that tests on the way to a node may ask its dotted path for, here or in functions that they call.

    ``of_parts``: only those that such a function asks something else for, the modules of a model say.
    """
    path = dotted_path(node)
    if path is None:
        return frozenset()
    return frozenset(name for test in _tests_before(view, node) for name in _may_ask_for(view, test, path, of_parts))


def asks_for_wrappers(view: FileView, function: ast.AST) -> bool:
    """Whether a function tests anything for being wrapped."""
    return not OF_WRAPPED.isdisjoint(_asked_in(view, function))


def _written_out(view: FileView, test: ast.expr) -> TypeTest | None:
    if isinstance(test, ast.BoolOp) and isinstance(test.op, ast.Or):
        parts = [_written_out(view, value) for value in test.values]
        known = [part for part in parts if part is not None]
        if len(known) != len(parts) or len({ast.dump(part.subject) for part in known}) != 1:
            return None
        names = frozenset[str]().union(*(part.names for part in known))
        return TypeTest(known[0].subject, names, all(part.is_whole for part in known))
    asked = _question(view, test)
    if asked is None:
        return None
    subject, classes = asked
    tested = classes.elts if isinstance(classes, (ast.Tuple, ast.List, ast.Set)) else [classes]
    names = [view.external(name) for name in tested]
    return TypeTest(subject, frozenset(name for name in names if name is not None), None not in names)


def _question(view: FileView, test: ast.AST) -> tuple[ast.expr, ast.expr] | None:
    """What is tested, and for which classes."""
    if isinstance(test, ast.Call) and len(test.args) == 2 and view.external(test.func) == "builtins.isinstance":
        return test.args[0], test.args[1]
    if not isinstance(test, ast.Compare) or not isinstance(test.ops[0], (ast.In, ast.Is, ast.Eq)):
        return None
    left = test.left
    if isinstance(left, ast.Call) and len(left.args) == 1 and view.external(left.func) == "builtins.type":
        return left.args[0], test.comparators[0]
    return None


def _answer(view: FileView, function: ast.AST) -> TypeTest | None:
    """The type test of its only argument that is all a function returns."""
    if not isinstance(function, ast.FunctionDef):
        return None
    arguments = [a.arg for a in function.args.args if a.arg not in ("self", "cls")]
    answers = [node for node in ast.walk(function) if isinstance(node, ast.Return)]
    if len(arguments) != 1 or answers != function.body[-1:] or answers[0].value is None:
        return None
    found = _written_out(view, answers[0].value)
    is_of_argument = found is not None and isinstance(found.subject, ast.Name) and found.subject.id == arguments[0]
    return found if is_of_argument else None


def _may_ask_for(view: FileView, test: ast.expr, path: str, of_parts: bool) -> Iterator[str]:
    """The classes that a condition may ask for, in itself or in the functions that it hands ``path`` to."""
    for node in ast.walk(test):
        asked = _question(view, node)
        if asked is not None:
            if dotted_path(asked[0]) == path and not of_parts:
                yield from _may_name(view, asked[1])
        elif isinstance(node, ast.Call) and any(dotted_path(argument) == path for argument in node.args):
            for callee in view.program.callees(view, node):
                yield from _asked_in(*view.program.function_node(callee), of_parts)


def _asked_in(view: FileView, function: ast.AST, of_parts: bool = False) -> Iterator[str]:
    """The classes that a function may ask for, of anything or of what it is not handed."""
    handed = {node.arg for node in ast.walk(function) if isinstance(node, ast.arg)}
    for node in ast.walk(function):
        asked = _question(view, node)
        if asked is not None and not (of_parts and dotted_path(asked[0]) in handed):
            yield from _may_name(view, asked[1])


def _may_name(view: FileView, classes: ast.expr) -> Iterator[str]:
    for node in ast.walk(classes):
        yield from (v.name for v in view.program.elements(view.values(node)) if isinstance(v, External))


def _tests_before(view: FileView, node: ast.AST) -> Iterator[ast.expr]:
    """The conditions that decide whether a node is reached: around it, or of statements before it that leave."""
    child: ast.AST = node
    for ancestor in view.ancestors(node):
        if isinstance(ancestor, (ast.If, ast.IfExp, ast.While)) and child is not ancestor.test:
            yield from _with_kept(view, ancestor.test)
        elif isinstance(ancestor, ast.BoolOp) and child in ancestor.values:
            yield from ancestor.values[: ancestor.values.index(child)]  # pyright: ignore[reportArgumentType]
        for test in leaving_tests(ancestor, child):
            yield from _with_kept(view, test)
        if isinstance(ancestor, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
            return
        child = ancestor


def leaving_tests(block: ast.AST, child: ast.AST) -> Iterator[ast.expr]:
    """The tests of statements that leave a block for good before ``child``, where they are true."""
    for name in ("body", "orelse", "finalbody"):
        statements = getattr(block, name, None)
        if isinstance(statements, list) and child in statements:
            for earlier in statements[: statements.index(child)]:
                if isinstance(earlier, ast.If) and not earlier.orelse and isinstance(earlier.body[-1], _LEAVING):
                    yield earlier.test


def _with_kept(view: FileView, test: ast.expr) -> Iterator[ast.expr]:
    """A test, and what the names in it were given before."""
    yield test
    for node in ast.walk(test):
        kept = kept_value(view, node) if isinstance(node, ast.Name) else None
        if kept is not None:
            yield kept


def kept_value(view: FileView, name: ast.Name) -> ast.expr | None:
    """The one value that a local name ever gets."""
    scope = view.function(name)
    if scope is None:
        return None
    stores = view.stores(scope).get(name.id, [])
    if len(stores) != 1 or view.function(stores[0]) is not scope:
        return None
    statement = view.parents[stores[0]]
    return statement.value if isinstance(statement, ast.Assign) and statement.targets == stores else None


_LEAVING = (ast.Return, ast.Raise, ast.Continue, ast.Break)
