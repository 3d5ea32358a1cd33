"""Loads into models that are plain by the program's own tests, while parts of some model are sharded."""

from __future__ import annotations

import ast

from ..findings import Level
from ..introspection.plain import is_plain_receiver, wrapper_kinds
from ..migration import Migration
from ..rule import Outcome
from ..sites import Site
from .whole_states import shard_on_the_way


def parts_load(migration: Migration, site: Site) -> Outcome | None:
    """Shards are cut for the parts that are sharded, and load_state_dict checks the keys as before.

    set_model_state_dict would not raise for keys that a file lacks, unless rank 0 hands it out, which takes all ranks.
    """
    view, node, call = site.view, site.node, site.call
    if not migration.groups.has_wrapped_parts or call is None or len(call.args) != 1 or not isinstance(node, ast.Attribute):
        return None
    kinds = wrapper_kinds(site.values) or {kind for group in migration.groups.all for kind in group.kinds}
    if not is_plain_receiver(view, node.value, kinds):
        return None
    outcome = Outcome(
        Level.REVIEW,
        "a test says that this model is not sharded itself; where its parts are, they keep this rank's shards of what is "
        "loaded, and keys are checked as before",
    )
    shard_on_the_way(migration, view, call, "model", outcome)
    return outcome
