"""``functools.partial(FSDP, …)``: a factory of wraps becomes a function that shards what it is given."""

from __future__ import annotations

import ast

from ..findings import Level
from ..migration import Migration
from ..rule import Outcome
from ..sites import Site
from ..text.definitions import defined_before, defined_instead
from ..text.patches import Part
from .aliases import alias_outcome
from .constructor import factory_of, is_partial
from .placement import shard_function
from .plan import Name
from .wrap_block import is_wrapper_of_block

_WHY = "a factory of wraps becomes a function that shards"


def check_reference(site: Site, migration: Migration) -> Outcome:
    """The finding of a mention of FSDP1 that is neither a call nor a type."""
    view = site.view
    if is_wrapper_of_block(site):
        return Outcome(Level.SAFE, "goes with enable_wrap", silent=True)
    alias = alias_outcome(site)
    if alias is not None:
        return alias
    call = view.parents[site.node]
    if not isinstance(call, ast.Call) or not is_partial(view, call, site.node):
        return Outcome(
            Level.MANUAL,
            "FullyShardedDataParallel is handed on as a value, and what calls it cannot be seen from here",
            "Hand on a function instead that calls fully_shard on the units and the model, and returns the model.",
            holds=True,
        )
    constructor = factory_of(migration, view, call, site.group)
    if constructor.spread:
        return Outcome(
            Level.MANUAL,
            "the arguments of this partial come from a dictionary that the tool cannot read",
            "Give them by name.",
            holds=True,
        )
    outcome = constructor.together(
        list(constructor.outcomes), "the partial becomes a function that shards its argument"
    )
    if outcome.level is Level.MANUAL:
        return outcome
    statement = view.statement(call)
    if not view.stands_alone(statement) or isinstance(view.parents[statement], ast.ClassDef):
        return Outcome(
            Level.MANUAL,
            "there is no place for a function where this partial stands",
            "Write a function that calls fully_shard and returns the model, and use it here.",
            holds=True,
        )
    target = statement.targets[0] if isinstance(statement, ast.Assign) and statement.value is call else None
    whole = isinstance(target, ast.Name)
    name = target.id if isinstance(target, ast.Name) else view.generated_name(call, "shard")
    indent = view.indent(statement)
    parts: list[Part] = []
    for part in shard_function(constructor.plan, name, "model"):
        if not isinstance(part, Name):
            parts.append(part.replace("\n", "\n" + indent) if isinstance(part, str) else part)
    if whole:
        outcome.patches.append(defined_instead(view, statement, parts, _WHY))
    else:
        inserted = view.insert_before(statement, [indent, *parts, "\n\n"], _WHY)
        outcome.patches.append(inserted if indent else defined_before(view, statement, [*parts, "\n"], _WHY))
        outcome.patches.append(view.replace(call, name, _WHY))
    outcome.patches.extend(constructor.patches)
    outcome.needs.extend(constructor.plan.needs)
    return outcome
