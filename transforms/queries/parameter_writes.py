"""Writes into parameters by code that a forward runs: what a gathered parameter gets there has to be kept."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from .file import File
from .forward_reach import functions_in_forwards
from .model_classes import writes_in
from .model_structure import ModelStructure

_IN_PLACE = frozenset({"copy_", "lerp_", "mul_", "add_", "sub_", "div_", "clamp_", "clip_", "fill_", "zero_", "set_", "normal_",
                       "uniform_", "addcmul_", "addcdiv_", "pow_", "sqrt_", "neg_"})  # fmt: skip
_SEVERAL = frozenset({"parameters", "named_parameters", "state_dict"})


def writes_parameters(structure: ModelStructure) -> bool:
    """Whether a forward of these models may write parameters."""
    if structure.calls_unseen_functions:
        files = [*map(structure.program.file, structure.program.relevant_files())]
        return any(writes_in(file, node) for file, node in functions_in_forwards(files))
    return any(_may_be_parameter(structure, file, node, written) for file, node in structure.forward_methods
               for written in _written(node))  # fmt: skip


def _written(function: ast.AST) -> Iterator[ast.expr]:
    """What a function changes in place, or gives other data."""
    for node in ast.walk(function):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _IN_PLACE:
            yield node.func.value
        elif isinstance(node, ast.Assign | ast.AugAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            yield from (t for t in targets if isinstance(t, ast.Attribute) and t.attr == "data")
            yield from (t.value for t in targets if isinstance(t, ast.Subscript))
            if isinstance(node, ast.AugAssign):
                yield node.target


def _may_be_parameter(structure: ModelStructure, file: File, function: ast.AST, written: ast.expr) -> bool:
    """Whether a written expression is a parameter by its name, or a name that may have got one."""
    if _names_parameter(structure, written) or "data" in _chain(written):
        return True
    root = _root(written)
    if not isinstance(root, ast.Name) or root.id in ("self", "cls"):
        return False
    for node in ast.walk(function):
        if isinstance(node, ast.Assign) and any(_binds(target, root.id) for target in node.targets):
            if _names_parameter(structure, node.value):
                return True
        elif isinstance(node, ast.For | ast.comprehension) and _binds(node.target, root.id):
            if _names_parameter(structure, node.iter, calls=True):
                return True
    arguments = getattr(function, "args", None)
    if arguments is None or root.id not in {a.arg for a in [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]}:
        return False
    name = getattr(function, "name", "")
    calls = (n for _, other in structure.forward_methods for n in ast.walk(other) if isinstance(n, ast.Call))
    return any(
        _names_parameter(structure, given)
        for call in calls if getattr(call.func, "attr", getattr(call.func, "id", None)) == name
        for given in [*call.args, *(k.value for k in call.keywords)]
    )  # fmt: skip


def _names_parameter(structure: ModelStructure, value: ast.expr, calls: bool = False) -> bool:
    """Whether an expression is an attribute with a parameter's name, a part of one, or, with ``calls``, several."""
    if calls and any(isinstance(n, ast.Attribute) and n.attr in _SEVERAL for n in ast.walk(value)):
        return True
    parts = value.elts if isinstance(value, ast.Tuple | ast.List) else [value]
    if calls and isinstance(value, ast.Call):
        parts = value.args
    return any(not structure.parameter_names.isdisjoint(_chain(part)) for part in parts)


def _chain(value: ast.expr) -> set[str]:
    """The attributes and methods in ``a.b[0].c()``; none where a function is called in between."""
    names: set[str] = set()
    while isinstance(value, ast.Attribute | ast.Subscript | ast.Call):
        if isinstance(value, ast.Call):
            if not isinstance(value.func, ast.Attribute):
                return names
            value = value.func
        if isinstance(value, ast.Attribute):
            names.add(value.attr)
        value = value.value
    return names


def _root(value: ast.expr) -> ast.expr:
    while isinstance(value, ast.Attribute | ast.Subscript | ast.Call):
        value = value.func if isinstance(value, ast.Call) else value.value
    return value


def _binds(target: ast.expr, name: str) -> bool:
    return any(isinstance(n, ast.Name) and n.id == name for n in ast.walk(target))
