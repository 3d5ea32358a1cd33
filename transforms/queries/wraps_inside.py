"""What wraps and modules have in common: wrapped heads in a ``ModuleList``, whose keys have a prefix, or nothing at all."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Sequence
from weakref import WeakKeyDictionary

from ..facts.facts import NOTHING
from ..flow.values import Container, Unknown, Value, Wrapped
from .file import File
from .sharding import ShardingQueries

_known: WeakKeyDictionary[ShardingQueries, dict[tuple[str, tuple[Value, ...]], frozenset[Value]]] = WeakKeyDictionary()


def wraps_inside(sharding: ShardingQueries, file: File, node: ast.expr) -> list[Wrapped]:
    """The wrappers in what a module holds, at any depth; none of a module that may be in one itself."""
    holders = [v for v in file.values(node) if not isinstance(v, Wrapped) and sharding.is_module(v)]
    return [v for v in sharding.held_values(holders) if isinstance(v, Wrapped) and not sharding.kept(v)]


def wraps_holder(sharding: ShardingQueries, wraps: Iterable[Wrapped], holders: Iterable[Value]) -> bool:
    """Whether some wrapper is one of what holds it."""
    flow = sharding.program.flow
    fields = [flow.fields.get((flow.ids.get(wrap, -1), "module"), NOTHING) for wrap in wraps]
    wrapped = {value for field in fields if field != NOTHING for value in flow.values_of(field)}
    return not wrapped.isdisjoint(holders)


def wraps_another(sharding: ShardingQueries, file: File, wrap: ast.AST, model: ast.expr) -> bool:
    """Whether what a call wraps surely is neither a model nor a part of it, nor the model a part of that."""
    flow, models = file.program.flow, file.values(model)
    made = [v for v in file.values(wrap) if isinstance(v, Wrapped)] if isinstance(wrap, ast.Call) else []
    fields = [flow.fields.get((flow.ids.get(v, -1), "module"), NOTHING) for v in made]
    inner = [v for field in fields if field != NOTHING for v in flow.values_of(field)]
    if not models or not inner or any(isinstance(v, Unknown) or getattr(v, "name", "") == "?" for v in (*models, *inner)):
        return False
    reached = _reached(sharding, sharding.held_values, models)
    shared = reached & _reached(sharding, sharding.with_parts, inner)
    return reached.isdisjoint(made) and all(_is_made_with_its_holder(sharding, v) and v not in (*models, *inner) for v in shared)


def _is_made_with_its_holder(sharding: ShardingQueries, value: Value) -> bool:
    """Whether a constructor makes a part for its own object: by one call in the text, but for each object another one."""
    if isinstance(value, Container):
        return True  # what is in it is asked about by itself
    site = getattr(value, "site", NOTHING)
    if site == NOTHING:
        return False
    flow = sharding.program.flow
    file, owner = flow.files[flow.file_of_call(site)], flow.calls[site].owner
    return owner != NOTHING and file.functions[owner].name == "__init__" and file.functions[owner].owner_class != NOTHING


def _reached(
    sharding: ShardingQueries, walk: Callable[[Iterable[Value]], Iterable[Value]], models: Sequence[Value]
) -> frozenset[Value]:
    """What a walk finds from models: there are few of them, and each is asked about with every method."""
    known = _known.setdefault(sharding, {})
    key = (walk.__name__, tuple(models))
    if key not in known:
        known[key] = frozenset(walk(models))
    return known[key]
