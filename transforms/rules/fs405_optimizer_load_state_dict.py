"""``optimizer.load_state_dict()`` of an optimizer whose model is sharded."""

from __future__ import annotations

from collections.abc import Iterator

from ..findings import Level
from ..migration import Migration
from ..rule import Example, Outcome, Rule
from ..sites import Site
from ..state.loads import load_outcome, optimizer_loads
from ..state.strangers import is_of_stranger, optimizers_of_strangers

_SYMBOL = "torch.optim.Optimizer.load_state_dict"


def find(migration: Migration) -> Iterator[Site]:
    """Every optimizer.load_state_dict() of a group."""
    sites = {site.call for every in migration.sites.values() for site in every}
    for view, call, group in optimizer_loads(migration):
        if call in sites:
            continue
        yield Site(view, call, _SYMBOL, "hazard", group, tuple(view.values(call.func)), call)
    yield from optimizers_of_strangers(migration, "load_state_dict")


def check(site: Site, migration: Migration) -> Outcome:
    """The load becomes set_optimizer_state_dict."""
    if is_of_stranger(migration, site):
        return Outcome(
            Level.MANUAL,
            "nothing in these files calls this function with an optimizer; one over sharded parameters refuses full tensors "
            "at its next step",
            "If the optimizers of sharded models come here, load with set_optimizer_state_dict(model, optimizer, state, "
            "options=StateDictOptions(full_state_dict=True)) on all ranks.",
        )
    return load_outcome(site, migration)


RULE = Rule(
    id="FS405",
    title="Loading optimizer state",
    why=(
        "optimizer.load_state_dict() puts full tensors beside sharded parameters: the load succeeds and the first step "
        "raises. set_optimizer_state_dict shards them. Files of FSDP1's optim_state_dict have the same names; with "
        "flat parameters they share one step counter, which then counts several times a step unless it is cloned."
    ),
    symbols=(_SYMBOL,),
    roles=("hazard",),
    check=check,
    find=find,
    sources=(
        "https://docs.pytorch.org/docs/stable/distributed.checkpoint.html#torch.distributed.checkpoint.state_dict.set_optimizer_state_dict",
    ),
    examples=(
        Example(
            before="""\
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


def main(state):
    model = FSDP(torch.nn.Linear(2, 2), use_orig_params=True)
    optimizer = torch.optim.AdamW(model.parameters())
    flattened = FSDP.optim_state_dict_to_load(model, optimizer, state)
    optimizer.load_state_dict(flattened)
""",
            after="""\
import torch
from torch.distributed.checkpoint.state_dict import StateDictOptions, set_optimizer_state_dict
from torch.distributed.fsdp import fully_shard


def main(state):
    model = torch.nn.Linear(2, 2)
    fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters())
    set_optimizer_state_dict(
        model, optimizer, state, options=StateDictOptions(full_state_dict=True)
    )
""",
        ),
    ),
    proof=("nanogpt_ddp", "finetuning_package", "full_optimizer_resume"),
)
