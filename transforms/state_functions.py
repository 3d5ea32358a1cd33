"""Which helper takes, or loads, the state of an object in the place of its own method; none where the method stays right."""

from __future__ import annotations

from .migration import Migration
from .queries.plain_branches import is_in_plain_branch
from .queries.unwrapping import comes_unwrapped
from .sites import Site


def taker_of_state(site: Site, migration: Migration) -> str | None:
    """The helper for ``state_dict()``: a model in DDP has ``module.`` in its keys, what is inside of the wrapper has not."""
    assert site.receiver is not None and site.sharding is not None
    optimizer = migration.sharding.of_optimizer(site.file, site.receiver)
    if site.sharding.wrappers and not site.sharding.in_place:
        inside = comes_unwrapped(migration.sharding, site.file, site.receiver, by_name=not site.sharding.certain)
        if not inside and not is_in_plain_branch(site.file, site.receiver):
            return "model_state"
    if migration.stays_whole(site):
        return None
    return "optimizer_state" if optimizer.wrappers and not site.sharding.wrappers else "state_of"


def loader_of_state(site: Site, migration: Migration) -> str | None:
    """The helper for ``load_state_dict()``."""
    assert site.receiver is not None and site.sharding is not None
    if migration.stays_whole(site):
        return None
    optimizer = migration.sharding.of_optimizer(site.file, site.receiver)
    if optimizer.wrappers and not site.sharding.wrappers:
        return "load_optimizer_state"
    if site.sharding.wrappers and not any(map(migration.sharding.is_no_module, site.file.values(site.receiver))):
        return "load_model_state"
    return "load_state"
