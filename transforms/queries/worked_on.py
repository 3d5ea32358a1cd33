"""Which sharded models and optimizers an expression stands for, where that is all it can be."""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterable

from ..facts.facts import NOTHING
from ..flow.values import Annotated, Constant, Optimizer, Unknown, Value, Wrapped
from .file import File
from .program import Program
from .sharding import ShardingQueries

_DEEPEST = 4


def objects_of(sharding: ShardingQueries, file: File, node: ast.expr) -> frozenset[Value]:
    """The sharded models (of a part, its model) and optimizers that an expression may be; none where there may be others."""
    values = [v for v in file.values(node) if not (isinstance(v, Constant) and v.value is None)]
    if any(isinstance(v, (Unknown, Annotated)) for v in values):
        return frozenset()
    return frozenset(with_owners(sharding, values))


def with_owners(sharding: ShardingQueries, values: Iterable[Value]) -> set[Value]:
    """The optimizers and sharded models among values, and the models that others are parts of."""
    values = list(values)
    owners = {owner for value in values if (owner := sharding.of_owners([value]).value) is not None}
    return owners | sharded_objects(sharding, values)


def sharded_objects(sharding: ShardingQueries, values: Iterable[Value]) -> set[Value]:
    """The optimizers and sharded models among values; parts of models are none."""
    return {v for v in values if isinstance(v, Optimizer) or sharding.of_values([v]).wrappers}


def is_one(sharding: ShardingQueries, objects: Collection[Value]) -> bool:
    """Whether objects are a single one, in its wrapper and without, whichever of several classes it is of.

    Of others that an expression may be, it is one at a time. What one place wraps once is one.
    """
    plain = _without_wrappers(sharding, objects)
    wraps = [v for v in objects if isinstance(v, Wrapped)]
    is_wrapped_once = len(wraps) == 1 and not _stands_for_several(sharding.program, wraps[0])
    return len(plain) == 1 or (is_wrapped_once and plain == _without_wrappers(sharding, wraps))


def are_among(sharding: ShardingQueries, objects: Collection[Value], others: Iterable[Value]) -> bool:
    """Whether objects are known and all are among others, be it in their wrappers or without.

    What a function wraps for more than one of its callers is several objects: of those, one is not the others.
    """
    known = [other for other in others if not _stands_for_several(sharding.program, other)]
    return bool(objects) and _without_wrappers(sharding, objects) <= _without_wrappers(sharding, known)


def _stands_for_several(program: Program, value: Value) -> bool:
    if not isinstance(value, Wrapped) or not program.is_written_as_call(value.site):
        return False
    flow = program.flow
    modules = flow.values_of(flow.fields.get((flow.ids.get(value, NOTHING), "module"), NOTHING))
    file, place = program.call_node(value.site)
    for _ in range(_DEEPEST if len(modules) > 1 else 0):
        function = file.function(place)
        callers = program.callers(file, function) if function is not None else []
        if len(callers) > 1:
            return True
        if not callers:
            break
        file, place = callers[0]
    return False


def _without_wrappers(sharding: ShardingQueries, objects: Iterable[Value]) -> set[Value]:
    flow = sharding.program.flow
    found: set[Value] = set()
    for value in objects:
        module = flow.fields.get((flow.ids.get(value, NOTHING), "module"), NOTHING) if isinstance(value, Wrapped) else NOTHING
        found |= {value} if module == NOTHING else set(flow.values_of(module))
    return found
