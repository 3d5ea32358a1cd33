"""What a model surely has no attribute of: names of its own parameters have no dot in front, unless a wrapper puts one there."""

from __future__ import annotations

import ast

from ..flow.values import Constant, Instance, Value, Wrapped
from .file import File
from .model_classes import class_of

_HIDES_NAMES = frozenset({"setattr", "register_parameter", "register_buffer", "add_module", "register_module", "__dict__"})


def surely_lacks(file: File, model: ast.expr, name: str) -> bool:
    """Whether a model, or the one in its wrapper, is of classes of the repository that set no attribute of a name."""
    flow = file.program.flow
    models: list[Value] = []
    for value in file.values(model):
        if isinstance(value, Wrapped):
            variable = flow.fields.get((flow.ids[value], "module"))
            models += flow.values_of(variable) if variable is not None else [value]
        elif not (isinstance(value, Constant) and value.value is None):
            models.append(value)
    return bool(models) and all(isinstance(v, Instance) and not _may_set(file, v, name) for v in models)


def _may_set(file: File, model: Instance, name: str) -> bool:
    program = file.program
    if any(base != "torch.nn.Module" for base in program.flow.external_bases(model.cls)):
        return True
    for cls in program.flow.ancestors(model.cls):
        found = class_of(program, Instance(cls, model.site))
        for node in ast.walk(found[1]) if found is not None else ():
            is_set = isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and node.attr == name
            if is_set or getattr(node, "attr", getattr(node, "id", "")) in _HIDES_NAMES:
                return True
    return False
