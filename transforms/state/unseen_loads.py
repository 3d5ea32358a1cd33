"""Functions that load state into whatever they are handed: of full tensors a sharded one takes its shards only.

Each rank has read the whole file and cuts its own part out of it, so ranks need not come together.
"""

from __future__ import annotations

from ..findings import Level
from ..migration import Migration
from ..rule import Outcome
from ..sites import Site
from .strangers import is_registered_for_plain, loads_of_strangers
from .whole_states import is_sharded_on_the_way, shard_on_the_way


def stranger_load(migration: Migration, site: Site, kind: str) -> Outcome:
    """What becomes of a load into a stranger; ``kind``: ``optimizer``, or ``any`` where it may be a model as well."""
    view, call = site.view, site.call
    if call is None or len(call.args) != 1:
        what = "an optimizer over sharded parameters" if kind == "optimizer" else "a sharded model"
        message = f"nothing in these files calls this function with {what}, which refuses full tensors"
        return Outcome(Level.MANUAL, message, _ADVICE)
    if is_sharded_on_the_way(view, call) or is_registered_for_plain(migration, site):
        return Outcome(Level.OK, "what comes here needs full tensors, or gets its shards")
    message = "whatever is handed in keeps this rank's shards of what is loaded where its tensors are sharded"
    if kind == "optimizer":
        message += "; files of DDP serve as before, those of FSDP1's flat parameters do not fit and raise at the next step"
    else:
        message += "; a file whose keys begin with DDP's module. no longer fits a model that was wrapped itself"
    outcome = Outcome(Level.REVIEW, message)
    serves_models = any(other.view is view for other in loads_of_strangers(migration))
    shard_on_the_way(migration, view, call, "any" if serves_models else kind, outcome)
    return outcome


_ADVICE = (
    "If such objects come here, cut this rank's shards out of the tensors first: DTensor.from_local(tensor, mesh, "
    "[Replicate()]).redistribute(placements=parameter.placements)."
)
