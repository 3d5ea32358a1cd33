"""The expressions that something taken out of a dictionary, a list or an object with fields was put into it as."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from ..flow.values import Instance
from .assignments import assigned_values
from .file import File
from .local_names import loop_of

_OF_ENTRIES = frozenset({"items", "values", "get"})
_PUT = frozenset({"update", "append", "add", "insert", "setdefault"})


def items_of(file: File, node: ast.expr) -> list[tuple[File, ast.expr]]:
    """What may have been put where an expression is taken from: ``nets[name]``, or ``net`` in ``for k, net in nets.items()``.

    The container is written out, where it is assigned or where a function of the repository returns it, or things are put
    into it: into an attribute of its name, by any code. Else none. Of ``setup.net`` it is what the field of a dataclass or
    named tuple was given.
    """
    if isinstance(node, ast.Attribute):
        return list(_given_to_field(file, node))
    container: ast.expr | None = node.value if isinstance(node, ast.Subscript) else None
    if isinstance(node, ast.Name) and (loop := loop_of(file, node)) is not None:
        container = loop.iter
    if isinstance(container, ast.Call) and isinstance(container.func, ast.Attribute) and container.func.attr in _OF_ENTRIES:
        container = container.func.value
    return list(_written(file, container)) if container is not None else []


def _written(file: File, container: ast.expr) -> Iterator[tuple[File, ast.expr]]:
    if isinstance(container, ast.Call):
        for owner, function in (file.program.function_node(callee) for callee in file.program.callees(file, container)):
            returns = (n.value for n in owner.returns_of(function))
            for value in returns:
                yield from ((owner, item) for item in _entries(value))
    elif isinstance(container, (ast.Name, ast.Attribute)):
        for value in assigned_values(file, container):
            yield from ((file, item) for item in _entries(value))
        yield from _put(file, container)


def _put(file: File, container: ast.Name | ast.Attribute) -> Iterator[tuple[File, ast.expr]]:
    """What is put into a container after it was made: ``nets[name] = net``, ``nets.update(teacher=net)``."""
    name = container.attr if isinstance(container, ast.Attribute) else container.id
    relevant = set(file.program.relevant_files())
    indices = file.program.files_by_word.get(name, ()) if isinstance(container, ast.Attribute) else [file.index]
    for owner in (file.program.file(index) for index in indices if index in relevant):
        for node in owner.nodes(type(container)):
            if getattr(node, "attr", getattr(node, "id", None)) != name:
                continue
            if isinstance(container, ast.Name) and owner.function(node) is not file.function(container):
                continue
            yield from ((owner, item) for item in _put_by(owner, node))


def _put_by(file: File, node: ast.AST) -> list[ast.expr]:
    around = file.parents[node]
    above = file.parents[around] if isinstance(around, (ast.Subscript, ast.Attribute)) else None
    if isinstance(around, ast.Subscript) and isinstance(above, ast.Assign) and around in above.targets:
        return [above.value]
    if isinstance(around, ast.Attribute) and around.attr in _PUT and isinstance(above, ast.Call) and above.func is around:
        given = [entry for value in above.args for entry in (_entries(value) or [value])]
        return [*given, *(keyword.value for keyword in above.keywords)]
    return []


def _entries(value: ast.expr | None) -> list[ast.expr]:
    if isinstance(value, ast.Dict):
        return value.values
    if isinstance(value, (ast.DictComp, ast.ListComp)):
        return [value.value if isinstance(value, ast.DictComp) else value.elt]
    return value.elts if isinstance(value, (ast.List, ast.Tuple)) else []


def _given_to_field(file: File, node: ast.Attribute) -> Iterator[tuple[File, ast.expr]]:
    program = file.program
    for value in file.values(node.value):
        if not isinstance(value, Instance) or not program.is_written_as_call(value.site):
            continue
        fields = program.facts[value.cls.file].classes[value.cls.index].fields
        if node.attr not in fields:
            continue
        owner, call = program.call_node(value.site)
        yield from ((owner, keyword.value) for keyword in call.keywords if keyword.arg == node.attr)
        yield from ((owner, argument) for argument in call.args[fields.index(node.attr) :][:1])
