"""Which sharded models and optimizers an expression stands for, where that is all it can be."""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterable

from ..facts.facts import NOTHING
from ..flow.values import Annotated, Constant, Optimizer, Unknown, Value, Wrapped
from .file import File
from .sharding import ShardingQueries


def objects_of(sharding: ShardingQueries, file: File, node: ast.expr) -> frozenset[Value]:
    """The sharded models (of a part, its model) and optimizers that an expression may be; none where there may be others."""
    values = [v for v in file.values(node) if not (isinstance(v, Constant) and v.value is None)]
    if any(isinstance(v, (Unknown, Annotated)) for v in values):
        return frozenset()
    return frozenset(found for v in values for found in sharded_objects(sharding, v))


def sharded_objects(sharding: ShardingQueries, value: Value) -> Iterable[Value]:
    """A value, if it is an optimizer or a sharded model, or the model that it is a part of."""
    if isinstance(value, Optimizer):
        yield value
    elif (found := sharding.of_owners([value])).wrappers and found.value is not None:
        yield found.value


def are_among(sharding: ShardingQueries, objects: Collection[Value], others: Iterable[Value]) -> bool:
    """Whether objects are known and all are among others, be it in their wrappers or without."""
    return bool(objects) and _without_wrappers(sharding, objects) <= _without_wrappers(sharding, others)


def _without_wrappers(sharding: ShardingQueries, objects: Iterable[Value]) -> set[Value]:
    flow = sharding.program.flow
    found: set[Value] = set()
    for value in objects:
        module = flow.fields.get((flow.ids.get(value, NOTHING), "module"), NOTHING) if isinstance(value, Wrapped) else NOTHING
        found |= {value} if module == NOTHING else set(flow.values_of(module))
    return found
