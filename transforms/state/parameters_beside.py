"""Parameters that belong to no sharded model, beside those of one: in a list to be clipped, or in an optimizer."""

from __future__ import annotations

from collections.abc import Iterable

from ..analysis import library
from ..analysis.values import Derived, Instance, Opaque, Optimizer, Value
from ..groups import Group
from ..migration import Migration

BESIDE = "this optimizer has parameters that are not the model's, and the helpers for its state know those alone: they raise"
APART = (
    "Give those parameters an optimizer of their own, or make them part of the model before it is sharded; or gather and load "
    "by hand: .full_tensor() of what is a DTensor in optimizer.state."
)


def parameters_beside(migration: Migration, values: Iterable[Value]) -> Group | None:
    """The group that some of these parameters are of, where others are surely of no group."""
    held = [v for v in migration.program.elements(list(values)) if isinstance(v, Derived) and v.kind == "parameters"]
    strange = [value for value in held if _is_of_no_model(migration, value)]
    return migration.groups.of_tensors(tuple(v for v in held if v not in strange)) if strange else None


def has_parameters_beside(migration: Migration, optimizers: Iterable[Value]) -> bool:
    """Whether an optimizer has both."""
    built = [value for value in optimizers if isinstance(value, Optimizer)]
    return any(parameters_beside(migration, migration.program.attribute(value, "params")) is not None for value in built)


def _is_of_no_model(migration: Migration, value: Derived) -> bool:
    """Whether parameters are made outside of any class, or are those of a module that has nothing to do with a group."""
    if migration.groups.of_tensors((value,)) is not None:
        return False
    owner = value.owner
    if isinstance(owner, Opaque) and owner.name in library.PARAMETER:
        view, call = migration.program.call_node(owner.site)
        return view.enclosing_class(call) is None
    return isinstance(owner, Instance)
