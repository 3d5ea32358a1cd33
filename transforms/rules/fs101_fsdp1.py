"""FS101: FullyShardedDataParallel, called or handed on."""

from __future__ import annotations

from functools import partial

from ..facts.symbols import FSDP1
from ..findings import Level
from ..migration import Migration
from ..queries.called_variables import calls_variable
from ..queries.class_tests import asks_for_unseen_classes
from ..queries.flat_parameters import shows_flat_parameters
from ..queries.unfrozen_parameters import are_frozen_in_turn
from ..rewrites.changes import remove_statement
from ..rewrites.fully_shard_lines import lines_for_fsdp1
from ..rewrites.helper_calls import function_instead
from ..rule import Example, Outcome, Rule
from ..sites import Site
from .fs120_ddp import IN_VARIABLE


def written_out(site: Site, migration: Migration) -> Outcome | None:
    """The calls of fully_shard that people write, where every argument is written out and has a plain counterpart."""
    plan = migration.plan(site)
    if plan is None or (site.call is not None and calls_variable(site.file, site.call)):
        return None
    names = migration.names(site.file)
    lines = lines_for_fsdp1(plan, names.torch, names.helper, partial(names.local, place=site.node))
    changes = [plan.place.rewritten(lines), *(remove_statement(site.file, s) for s in plan.arguments.needless)]
    if _may_keep_gradients(site, migration):
        return Outcome(_KEPT, changes, Level.REVIEW, advice=_RESET)
    return Outcome("fully_shard shards the blocks and then the model, in place", changes)


def shard_like(site: Site, migration: Migration) -> Outcome | None:
    """The class's place is taken by a function with its signature, which shards in place and returns the module."""
    if not migration.options.wraps:
        return None
    if site.call is not None and calls_variable(site.file, site.call):
        return Outcome(IN_VARIABLE, level=Level.OK)
    is_asked_for = site.role == "value" and migration.program.once(asks_for_unseen_classes)
    name = migration.helper(site, "ClassLikeFSDP1" if is_asked_for else "shard_like_fsdp1")
    change = function_instead(site.file, site.node, site.call, name)
    if _may_keep_gradients(site, migration):
        return Outcome(_KEPT, [change], Level.REVIEW, advice=_RESET)
    return Outcome("fully_shard takes the wrapper's place; its arguments are translated when it runs", [change])


def _may_keep_gradients(site: Site, migration: Migration) -> bool:
    """Whether FSDP1 may have added what a model learned last, before it was frozen, to what it learns next.

    Flat parameters that others learn through while they are frozen have their gradient put aside (torch 2.13), where
    zero_grad() does not find it.
    """
    if site.call is None or shows_flat_parameters(migration.program, site.call) is False:
        return False
    paths = migration.programs.sharing_entries(site.file.path)
    return are_frozen_in_turn(migration.sharding, paths, migration.runs_before_wraps)


_KEPT = "FSDP1 kept gradients of a model frozen while others learn through it, beyond zero_grad(), and added the next to them"
_RESET = "Reset its gradients before it is frozen, and both runs are alike; models of FSDP2 keep none."


RULE = Rule(
    id="FS101",
    title="FullyShardedDataParallel",
    symbols=(FSDP1,),
    roles=("call", "value"),
    why="FSDP2 shards a module in place: there is no wrapper, parameters are DTensors, and children are sharded before parents.",
    idiom=written_out,
    fallback=shard_like,
    examples=(
        Example(
            before=(
                "from torch.distributed.fsdp import FullyShardedDataParallel as FSDP\n\n\n"
                "def wrap(model, **options):\n    return FSDP(model, **options)\n"
            ),
            after=(
                "from fsdp2_helpers import shard_like_fsdp1\n\n\n"
                "def wrap(model, **options):\n    return shard_like_fsdp1(model, **options)\n"
            ),
            level=Level.SAFE,
        ),
    ),
    proof=("keywords_in_a_dict",),
)
