"""Which helper takes, or loads, the state of an object in the place of its own method; none where the method stays right."""

from __future__ import annotations

import ast

from .behind_guards import is_held_behind
from .facts.facts import NOTHING
from .flow.values import Constant, Instance, Value
from .migration import Migration
from .queries.delegated_states import delegates_state
from .queries.narrowed import asks_for_other_class
from .queries.unwrapping import comes_unwrapped
from .queries.whole_copies import keeps_whole_copies
from .queries.wraps_inside import wraps_holder, wraps_inside
from .sites import Site


def has_state(site: Site, migration: Migration) -> bool:
    """Whether the state of an object may be that of a sharded model: of it, its optimizer, or what was made with its tensors."""
    assert site.receiver is not None and site.sharding is not None
    if asks_for_other_class(site.file, site.node, site.receiver):
        return False
    values = [v for v in site.file.values(site.receiver) if not (isinstance(v, Constant) and v.value is None)]
    if values and not any(map(migration.sharding.is_module, values)):
        if all(delegates_state(migration.program, value, site.member) for value in values):
            return False
    if site.sharding.possible or migration.sharding.of_optimizer(site.file, site.receiver).possible:
        return True
    return any(_keeps_tensors(migration, value) for value in site.file.values(site.receiver))


def _keeps_tensors(migration: Migration, value: Value) -> bool:
    """Whether an object with state dicts of its own making was given a sharded model, or its parameters: an average, say."""
    sharding, flow = migration.sharding, migration.program.flow
    if not isinstance(value, Instance) or value.site < 0 or not flow.has_member(value.cls, "state_dict"):
        return False
    if sharding.is_module(value) or sharding.is_optimizer(value) or keeps_whole_copies(sharding, value):
        return False
    call = flow.calls[value.site]
    given = [v for v in (*call.arguments, *(variable for _, variable in call.keywords)) if v != NOTHING]
    for values in map(flow.values_of, given):
        if sharding.of_values(values).wrappers or sharding.of_owners(list(sharding.owners(values))).wrappers:
            return True
    return False


def taker_of_state(site: Site, migration: Migration) -> str | None:
    """The helper for ``state_dict()``: a model in DDP has ``module.`` in its keys, what is inside of the wrapper has not."""
    assert site.receiver is not None and site.sharding is not None
    optimizer = migration.sharding.of_optimizer(site.file, site.receiver)
    inside = False
    needs_keys = not _is_loaded_at_once(site, migration) and not _reads_values(site)
    if site.sharding.wrappers and not site.sharding.in_place and needs_keys:
        inside = comes_unwrapped(migration.sharding, site.file, site.receiver, by_name=not site.sharding.certain)
        if not inside:
            return "model_state"
    if not inside and (_holds_ddp(site, migration) or (needs_keys and _is_named_as_wrapper(site, migration))):
        return "model_state"
    if migration.stays_whole(site) or _is_held(site, migration):
        return None
    return "optimizer_state" if optimizer.wrappers and not site.sharding.wrappers else "state_of"


def _is_named_as_wrapper(site: Site, migration: Migration) -> bool:
    """Whether nothing is known of an attribute's owner, and DDP's wrappers alone are kept under the attribute's name.

    A hook that a registry makes knows its trainer by what some method assigns; ``trainer.model`` is what trainers have there.
    """
    node, program = site.receiver, migration.program
    if not isinstance(node, ast.Attribute) or site.file.values(node):
        return False
    near = set(migration.programs.sharing_entries(site.file.path))
    files = [file for file in map(program.file, program.files_that_store(node.attr)) if file.path in near]
    stored = [(f, n) for f in files for n in f.nodes(ast.Attribute) if n.attr == node.attr and isinstance(n.ctx, ast.Store)]
    kept = [place for place in stored if "ddp" in migration.sharding.of(*place).wrapped_in]
    return bool(kept) and not any(comes_unwrapped(migration.sharding, *place) for place in kept)


def _is_loaded_at_once(site: Site, migration: Migration) -> bool:
    """Whether a state only goes into another sharded model: ``teacher.load_state_dict(student.state_dict())``."""
    parent = site.file.parents[site.call] if site.call is not None else None
    if not isinstance(parent, ast.Call) or not isinstance(parent.func, ast.Attribute) or parent.func.attr != "load_state_dict":
        return False
    return set(migration.sharding.of(site.file, parent.func.value).wrappers) == {"ddp"}


def _reads_values(site: Site) -> bool:
    """Whether nothing but the tensors of a state is read: ``model.state_dict().values()``."""
    parent = site.file.parents[site.call] if site.call is not None else None
    return isinstance(parent, ast.Attribute) and parent.attr == "values"


def _holds_ddp(site: Site, migration: Migration) -> bool:
    """Whether ``module.`` stands inside of keys: of a list of models in DDP, say.

    What says that a model is inside of its own wrapper, and that inside of the model, has taken models for each other.
    """
    assert site.receiver is not None
    inside = [wrap for wrap in wraps_inside(migration.sharding, site.file, site.receiver) if wrap.kind == "DDP"]
    return bool(inside) and not wraps_holder(migration.sharding, inside, site.file.values(site.receiver))


def loader_of_state(site: Site, migration: Migration) -> str | None:
    """The helper for ``load_state_dict()``."""
    assert site.receiver is not None and site.sharding is not None
    if migration.stays_whole(site):
        return None
    is_held = _is_held(site, migration)
    optimizer = migration.sharding.of_optimizer(site.file, site.receiver)
    if optimizer.wrappers and not site.sharding.wrappers:
        return None if is_held else "load_optimizer_state"
    is_wrapped = bool(site.sharding.wrappers) or _holds_ddp(site, migration)
    if is_wrapped and not any(map(migration.sharding.is_no_module, site.file.values(site.receiver))):
        return "load_model_state"
    return None if is_held else "load_state"


def _is_held(site: Site, migration: Migration) -> bool:
    """Whether a guard in the function of a site has what it works on held whole: its own method is right there."""
    guards = (guard for guard, hidden in migration.hidden.items() if any(h.site is site and not h.calls for h in hidden))
    return any(isinstance(guard, ast.stmt) and is_held_behind(site.file, guard, migration.hidden[guard]) for guard in guards)
