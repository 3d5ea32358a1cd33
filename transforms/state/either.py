"""Objects that may be a model as well as an optimizer: what a registry gives for a name."""

from __future__ import annotations

import ast
from collections.abc import Iterable

from ..analysis.values import Annotated, Optimizer, Value, Wrapped
from ..migration import Migration
from ..view import FileView

EITHER = "this may be a model as well as an optimizer, and each takes a call of its own"
TELL = (
    "Tell them apart with isinstance, and call get_model_state_dict / set_model_state_dict for models, "
    "get_optimizer_state_dict / set_optimizer_state_dict for optimizers with their models."
)


def may_be_either(migration: Migration, view: FileView, receiver: ast.expr) -> bool:
    """Whether both a wrapped model and an optimizer may stand here; a name that says optimizer is believed."""
    values = view.values(receiver)
    while isinstance(receiver, ast.Subscript):
        receiver = receiver.value
    name = receiver.attr if isinstance(receiver, ast.Attribute) else receiver.id if isinstance(receiver, ast.Name) else ""
    return "opt" not in name.lower() and _holds_both(migration, values)


def _holds_both(migration: Migration, values: Iterable[Value]) -> bool:
    raw = {value for group in migration.groups.all for value in group.raw}
    found = list(values)
    is_model = any(isinstance(value, (Wrapped, Annotated)) or value in raw for value in found)
    return is_model and any(isinstance(value, Optimizer) for value in found)
