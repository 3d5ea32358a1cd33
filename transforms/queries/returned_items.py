"""Items of what functions of the repository return: of tuples, and of lists that they fill."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from .assignments import assigned_values
from .file import File

_COPIES = frozenset({"tuple", "list"})
_PUTS = frozenset({"append", "insert"})
_DEEPEST = 3


def returned_items(file: File, name: ast.expr) -> Iterator[tuple[File, ast.expr]]:
    """What a name gets of ``a, b = f()``: that item of each tuple that ``f`` returns, with the file that it stands in.

    Of a list that ``f`` fills, whatever it puts in.
    """
    for value, place, count in _calls_taken_apart(file, name):
        for function in file.program.callees(file, value):
            owner, node = file.program.function_node(function)
            for found in owner.returns_of(node):
                if isinstance(found.value, ast.Tuple) and len(found.value.elts) == count:
                    yield owner, found.value.elts[place]
                elif found.value is not None:
                    yield from ((owner, item) for item in filled_with(owner, found.value))


def taken_apart(file: File, name: ast.Name) -> Iterator[ast.expr]:
    """The arguments that the items of calls are of: of ``a, b = f(x, y)`` x for a, as functions of ``*objects`` give them."""
    for call, place, count in _calls_taken_apart(file, name):
        if len(call.args) == count and not any(isinstance(a, ast.Starred) for a in call.args):
            yield call.args[place]


def _calls_taken_apart(file: File, name: ast.expr) -> Iterator[tuple[ast.Call, int, int]]:
    """The calls that a name gets an item of, with its place and how many there are."""
    bindings = file.bindings.get(name.id, ()) if isinstance(name, ast.Name) else ()
    for binding in bindings:
        target = file.parents[binding]
        statement = file.parents[target]
        value = statement.value if isinstance(statement, ast.Assign) else None
        if not isinstance(target, ast.Tuple) or not isinstance(value, ast.Call):
            continue
        if file.function(binding) is not file.function(name) or any(isinstance(e, ast.Starred) for e in target.elts):
            continue
        yield value, next(i for i, e in enumerate(target.elts) if e is binding), len(target.elts)


def filled_with(file: File, container: ast.expr, depth: int = 0) -> Iterator[ast.expr]:
    """What is put into a list of a function, which an expression is, copies, or takes an item out of."""
    if isinstance(container, ast.IfExp):
        yield from filled_with(file, container.body, depth)
        yield from filled_with(file, container.orelse, depth)
    elif isinstance(container, ast.Subscript):
        yield from filled_with(file, container.value, depth)
    elif isinstance(container, (ast.ListComp, ast.GeneratorExp)):
        yield container.elt
    elif isinstance(container, ast.Call):
        is_copy = isinstance(container.func, ast.Name) and container.func.id in _COPIES and len(container.args) == 1
        yield from filled_with(file, container.args[0], depth) if is_copy else ()
    elif isinstance(container, ast.Name) and depth < _DEEPEST:
        for value in assigned_values(file, container):
            yield from value.elts if isinstance(value, ast.List) else filled_with(file, value, depth + 1)
        scope = file.function(container) or file.tree
        for call in (n for n in ast.walk(scope) if isinstance(n, ast.Call) and isinstance(n.func, ast.Attribute)):
            owner = call.func.value  # type: ignore[attr-defined]
            if call.func.attr in _PUTS and isinstance(owner, ast.Name) and owner.id == container.id:  # type: ignore[attr-defined]
                yield from call.args[-1:]
