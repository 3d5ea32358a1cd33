"""Other names for what a place works on: those in the guard's own function that hold the same models and optimizers."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable
from fnmatch import fnmatchcase

from ..facts.facts import NOTHING
from ..facts.symbols import AVERAGES
from ..flow.values import Constant, Instance, Opaque, Value
from .file import File
from .guards import Guard
from .kept_models import keeps_model
from .made_behind import is_made_behind
from .program import Program
from .sharding import ShardingQueries
from .worked_on import are_among, sharded_objects, with_owners

_MAY_BE_SHARDED = re.compile(r"(?i)model|net|optim")


def other_name(sharding: ShardingQueries, guard: Guard, values: set[Value]) -> str | None:
    """A name or attribute at a guard that surely holds the same model or optimizer, of the values that it may have."""
    objects = sharded_objects(sharding, values)
    for node, held, found in _names_of(sharding, guard, objects):
        others = {v for v in held if not sharded_objects(sharding, [v])}
        if are_among(sharding, objects, found) and others <= values and not is_made_behind(guard.file, node, guard):
            return ast.unparse(node)
    return None


def names_of_kept(sharding: ShardingQueries, guard: Guard, holders: Iterable[Value]) -> str | None:
    """The names at a guard of all that an object keeps which some ranks alone have: a saver's model and optimizer."""
    holders = [v for v in holders if not (isinstance(v, Constant) and v.value is None)]
    known = sharding.program.once(_KeptObjects)
    kept_by_each = [known.of(sharding, v) for v in holders]
    if not holders or any(kept is None for kept in kept_by_each):
        return None
    kept = _all(kept for kept in kept_by_each if kept is not None)
    named: dict[str, set[Value]] = {}
    for node, _, found in _names_of(sharding, guard, kept):
        if not are_among(sharding, found, _all(named.values())) and not is_made_behind(guard.file, node, guard):
            named[ast.unparse(node)] = found
    if not are_among(sharding, kept, _all(named.values())):
        return None
    return next(iter(named)) if len(named) == 1 else f"[{', '.join(sorted(named))}]"


def _names_of(
    sharding: ShardingQueries, guard: Guard, objects: set[Value]
) -> Iterable[tuple[ast.Name | ast.Attribute, set[Value], set[Value]]]:
    """The names at a guard of some of these and nothing else that is sharded, with what they hold and what of it is sharded.

    Those of wrappers come before those of what is in them.
    """
    names = _names_at(sharding.program, guard) if objects else ()
    found = ((node, held, sharded_objects(sharding, held)) for node, held in names)
    return sorted((name for name in found if are_among(sharding, name[2], objects)), key=lambda name: not name[2] <= objects)


class _KeptObjects:
    """What each holder keeps: many places behind one guard ask about the same ones, and a trainer may hold all there is."""

    def __init__(self, _: Program) -> None:
        self._found: dict[tuple[ShardingQueries, Value], set[Value] | None] = {}

    def of(self, sharding: ShardingQueries, value: Value) -> set[Value] | None:
        if (sharding, value) not in self._found:
            self._found[sharding, value] = _kept_by(sharding, value)
        return self._found[sharding, value]


def _kept_by(sharding: ShardingQueries, value: Value) -> set[Value] | None:
    """The sharded models and optimizers that an object keeps, or that a library's was made with; None where that is not known."""
    flow = sharding.program.flow
    found: set[Value] = set()
    if isinstance(value, Instance) and not sharding.is_module(value):
        found = with_owners(sharding, sharding.held_values([value]))
        if not keeps_model(sharding.program, sharding, value):
            return found
    elif not isinstance(value, Opaque) or value.site < 0:
        return None
    call = flow.calls[value.site]
    given = [flow.values_of(variable) for variable in call.arguments if variable != NOTHING]
    given += [flow.values_of(variable) for name, variable in call.keywords if _MAY_BE_SHARDED.search(name or "")]
    for values in given:
        objects = with_owners(sharding, values)
        if not objects and not (any(isinstance(v, Opaque) for v in values) and all(map(_is_average, values))):
            if sharding.of_values(values).possible or sharding.of_optimizers(values).possible:
                return None
        found |= objects
    return found


def _is_average(value: Value) -> bool:
    """Whether a value is an average that a library keeps in a plain copy, or None, where there is no average."""
    if isinstance(value, Constant):
        return value.value is None
    return isinstance(value, Opaque) and any(fnmatchcase(value.name, name) for name in AVERAGES)


def _all(found: Iterable[set[Value]]) -> set[Value]:
    return set().union(*found)


def _names_at(program: Program, guard: Guard) -> Iterable[tuple[ast.Name | ast.Attribute, set[Value]]]:
    """What stands in front of a guard, in its function, last first: each name with what it held where it was read last."""
    names = program.once(_ObjectNames).of(guard.file, guard.file.function(guard.statement))
    found: dict[str, tuple[ast.Name | ast.Attribute, set[Value]]] = {}
    for node, values in names:
        if node.lineno <= guard.statement.lineno:
            found.setdefault(ast.unparse(node), (node, values))
    return found.values()


class _ObjectNames:
    """The names and attributes in each function that hold something, last first, with what they hold."""

    def __init__(self, _: Program) -> None:
        self._found: dict[tuple[File, ast.AST | None], list[tuple[ast.Name | ast.Attribute, set[Value]]]] = {}

    def of(self, file: File, function: ast.AST | None) -> list[tuple[ast.Name | ast.Attribute, set[Value]]]:
        if (file, function) not in self._found:
            nodes = list(ast.walk(function or file.tree))
            # A loop over a dictionary gives its keys.
            keys = {n.slice.id for n in nodes if isinstance(n, ast.Subscript) and isinstance(n.slice, ast.Name)}
            names = [n for n in nodes if isinstance(n, (ast.Name, ast.Attribute)) and file.function(n) is function]
            names = [n for n in names if not (isinstance(n, ast.Name) and n.id in keys)]
            held = [(n, values) for n in names if (values := set(file.values(n)))]
            self._found[file, function] = sorted(held, key=lambda found: (-found[0].lineno, -found[0].col_offset))
        return self._found[file, function]
