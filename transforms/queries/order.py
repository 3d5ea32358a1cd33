"""What runs before a model is wrapped: there it is plain, and stays as it is."""

from __future__ import annotations

import ast

from ..flow.values import Instance, Value, Wrapped
from .answers import Sharding
from .file import File
from .model_classes import class_of
from .program import Program
from .textual_order import in_other_branch

_LOOPS = (ast.For, ast.AsyncFor, ast.While)


def is_before_wrap(program: Program, file: File, node: ast.AST, sharding: Sharding) -> bool:
    """Whether a place surely runs only before every wrap of the model that it works on.

    So it is where all wraps stand in the same function, further down, and no loop is around both; or where the place
    is in the constructor of the model's own class.
    """
    if not sharding.in_place or sharding.value is None:
        return False
    function = file.function(node)
    wraps = [v for v in program.wraps if _holds(program, v, sharding)]
    if not wraps:
        return False
    if isinstance(function, ast.FunctionDef) and function.name == "__init__" and _is_self(node):
        if _is_of_class(program, file, function, sharding.value):
            return True
    for wrap in wraps:
        if program.flow.file_of_call(wrap.site) != file.index:
            return False
        _, call = program.call_node(wrap.site)
        if file.function(call) is not function:
            return False
        if call.lineno <= node.lineno and not in_other_branch(file, call, node):  # type: ignore[attr-defined]
            return False
        loops = {a for a in file.ancestors(call) if isinstance(a, _LOOPS)}
        if any(a in loops for a in file.ancestors(node)):
            return False
    return True


def _is_of_class(program: Program, file: File, method: ast.FunctionDef, value: Value) -> bool:
    """Whether a method belongs to the class of an object, or to one that it is derived from."""
    around = file.enclosing_class(method)
    if not isinstance(value, Instance) or around is None:
        return False
    places = (class_of(program, Instance(cls, -1)) for cls in program.flow.ancestors(value.cls))
    return any(place is not None and place[1] is around for place in places)


def _is_self(node: ast.AST) -> bool:
    return any(isinstance(n, ast.Name) and n.id == "self" for n in ast.walk(node))


def _holds(program: Program, wrap: Wrapped, sharding: Sharding) -> bool:
    number = program.flow.ids.get(wrap)
    variable = None if number is None else program.flow.fields.get((number, "module"))
    return variable is not None and sharding.value in program.flow.values_of(variable)
