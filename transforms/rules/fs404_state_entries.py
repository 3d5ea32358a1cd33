"""FS404: parameters that are put into a state dict by hand."""

from __future__ import annotations

import ast

from ..findings import Level
from ..migration import Migration
from ..queries.guards import guard_of
from ..rewrites.helper_calls import around
from ..rule import Example, Outcome, Rule
from ..sites import STATE_ENTRY, Site


def put_whole(site: Site, migration: Migration) -> Outcome | None:
    """The whole parameter goes into the dictionary, as under DDP: a file would hold one rank's part of it."""
    assert site.sharding is not None and site.receiver is not None
    if site.sharding.wrappers != {"ddp"} or migration.is_before_wrap(site):
        return None
    guarded = guard_of(site.file, site.node) or (_comes_from_outside(site) and migration.guards.of(site.file, site.node))
    if guarded:
        return None  # a gather that only some ranks make would hang: the run tells
    change = around(site.file, site.receiver, f"{migration.helper(site, 'state_entry')}({{it}})")
    return Outcome("what goes into the state dict is whole, if it is sharded", [change])


def _comes_from_outside(site: Site) -> bool:
    """Whether the function was given the state dict: one that it read itself has the model held whole behind a guard."""
    assert isinstance(site.node, ast.Assign) and isinstance(site.node.targets[0], ast.Subscript)
    base, function = site.node.targets[0].value, site.file.function(site.node)
    names = [n for n in ast.walk(function or site.file.tree) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)]
    return not isinstance(base, ast.Name) or all(name.id != base.id for name in names)


RULE = Rule(
    id="FS404",
    title="parameters put into state dicts",
    symbols=(STATE_ENTRY,),
    roles=("store",),
    why="A state dict of whole tensors into which sharded parameters are put saves one rank's part of them.",
    fallback=put_whole,
    examples=(
        Example(
            before=(
                "from torch.nn.parallel import DistributedDataParallel as DDP\n"
                "\n"
                "\n"
                "def f(net, options):\n"
                "    model = DDP(net, **options)\n"
                "    state = model.state_dict()\n"
                "    for name, p in model.named_parameters():\n"
                "        state[name] = p\n"
                "    return model, state\n"
            ),
            after=(
                "from fsdp2_helpers import model_state, named_parameters, shard_like_ddp, state_entry\n"
                "\n"
                "\n"
                "def f(net, options):\n"
                "    model = shard_like_ddp(net, **options)\n"
                "    state = model_state(model)\n"
                "    for name, p in named_parameters(model):\n"
                "        state[name] = state_entry(p)\n"
                "    return model, state\n"
            ),
            level=Level.REVIEW,
        ),
    ),
)
