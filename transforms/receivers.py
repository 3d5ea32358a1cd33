"""Which methods a call on ``self`` really reaches: an object whose class overrides the caller never runs the caller."""

from __future__ import annotations

import ast

from .analysis.values import ClassValue, FunctionValue, Instance
from .program import Program
from .view import FileView


def callees_on_self(program: Program, view: FileView, call: ast.Call) -> list[FunctionValue]:
    """The functions that a call reaches; of a method called on ``self``, those that some object can see."""
    callees = program.callees(view, call)
    function = view.function(call)
    target = call.func
    if len(callees) < 2 or not isinstance(function, ast.FunctionDef) or not isinstance(target, ast.Attribute):
        return callees
    own = program.function_value(view, function)
    names = [a.arg for a in function.args.args]
    if own is None or not isinstance(target.value, ast.Name) or target.value.id not in names[:1]:
        return callees
    seen: set[FunctionValue] = set()
    for value in view.values(target.value):
        if not isinstance(value, Instance):
            return callees
        if _method(program, value.cls, function.name) == own or _passes_on(program, value.cls, function.name):
            found = _method(program, value.cls, target.attr)
            if found is None:
                return callees
            seen.add(found)
    return [callee for callee in callees if callee in seen] or callees


def _method(program: Program, cls: ClassValue, name: str) -> FunctionValue | None:
    """The function that a class has for a name, its own or its nearest base's."""
    for ancestor in program.flow.ancestors(cls):
        variable = program.files[ancestor.file].classes[ancestor.index].members.get(name)
        if variable is not None:
            values = program.flow.values_of(variable + program.flow.variable_offsets[ancestor.file])
            return next((value for value in values if isinstance(value, FunctionValue)), None)
    return None


def _passes_on(program: Program, cls: ClassValue, name: str) -> bool:
    """Whether the method of a class calls that of its base, ``super().train()``."""
    method = _method(program, cls, name)
    if method is None:
        return True
    _, node = program.function_node(method)
    return any(isinstance(inner, ast.Attribute) and inner.attr == name and _is_base(inner) for inner in ast.walk(node))


def _is_base(node: ast.Attribute) -> bool:
    """``super().train`` or ``Base.train``: anything but ``self.train``."""
    return not (isinstance(node.value, ast.Name) and node.value.id in ("self", "cls"))
