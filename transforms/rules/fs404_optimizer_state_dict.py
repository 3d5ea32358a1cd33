"""``optimizer.state_dict()`` of an optimizer whose model is sharded."""

from __future__ import annotations

from collections.abc import Iterator

from ..findings import Level
from ..migration import Migration
from ..rule import Example, Outcome, Rule
from ..sites import Site
from ..state.outcomes import optimizer_outcome
from ..state.plans import SEVERAL
from ..state.reads import optimizer_calls, read_of
from ..state.strangers import is_of_stranger, optimizers_of_strangers
from ..state.unseen_savers import saver_outcome

_SYMBOL = "torch.optim.Optimizer.state_dict"


def find(migration: Migration) -> Iterator[Site]:
    """Every optimizer.state_dict() of a group."""
    sites = {site.call for every in migration.sites.values() for site in every}
    for view, call, group in optimizer_calls(migration, "state_dict"):
        if call in sites:
            continue
        yield Site(view, call, _SYMBOL, "hazard", group, tuple(view.values(call.func)), call)
    yield from optimizers_of_strangers(migration, "state_dict")


def check(site: Site, migration: Migration) -> Outcome:
    """The read becomes get_optimizer_state_dict."""
    if is_of_stranger(migration, site):
        return saver_outcome(migration, site, "optimizer")
    read = read_of(migration, site.call) if site.call is not None else None
    if read is None:
        return Outcome(
            Level.MANUAL,
            "state_dict of an optimizer is handed on as a function; called later, it would give this rank's shards only",
            "Hand on a function that calls get_optimizer_state_dict(model, optimizer, options=…) instead.",
            holds=True,
        )
    if read.group is not site.group:
        return Outcome(Level.MANUAL, SEVERAL, holds=True, silent=True)
    return optimizer_outcome(migration, read)


RULE = Rule(
    id="FS404",
    title="Optimizer state dicts",
    why=(
        "The state of an optimizer over sharded parameters is sharded: torch.save of it on rank 0 writes a fraction "
        "and raises nothing. get_optimizer_state_dict gathers it, keyed by parameter name."
    ),
    symbols=(_SYMBOL,),
    roles=("hazard",),
    check=check,
    find=find,
    sources=(
        "https://docs.pytorch.org/docs/stable/distributed.checkpoint.html#torch.distributed.checkpoint.state_dict.get_optimizer_state_dict",
    ),
    examples=(
        Example(
            before="""\
import torch
from torch.nn.parallel import DistributedDataParallel as DDP


def main(rank):
    model = DDP(torch.nn.Linear(2, 2))
    optimizer = torch.optim.AdamW(model.parameters())
    if rank == 0:
        torch.save({"optimizer": optimizer.state_dict()}, "checkpoint.pt")
""",
            after="""\
import torch
import torch.distributed as dist
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_optimizer_state_dict
from torch.distributed.fsdp import fully_shard


def main(rank):
    model = torch.nn.Linear(2, 2)
    for tensor in [*model.parameters(), *model.buffers()]:
        dist.broadcast(tensor.detach(), src=0)
    fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters())
    optimizer_state_dict = get_optimizer_state_dict(
        model, optimizer, options=StateDictOptions(full_state_dict=True, cpu_offload=True)
    )
    if rank == 0:
        torch.save({"optimizer": optimizer_state_dict}, "checkpoint.pt")
""",
        ),
    ),
    proof=("nanogpt_ddp",),
)
