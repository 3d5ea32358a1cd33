"""``optimizer.state_dict()`` of an optimizer whose model is sharded."""

from __future__ import annotations

from collections.abc import Iterator

from ..findings import Level
from ..migration import Migration
from ..rule import Example, Outcome, Rule
from ..sites import Site
from ..state_reads import optimizer_calls, plan_of, read_of, write_read

_SYMBOL = "torch.optim.Optimizer.state_dict"


def find(migration: Migration) -> Iterator[Site]:
    """Every optimizer.state_dict() of a group."""
    for view, call, group in optimizer_calls(migration, "state_dict"):
        yield Site(view, call, _SYMBOL, "hazard", group, tuple(view.values(call.func)), call)


def check(site: Site, migration: Migration) -> Outcome:
    """The read becomes get_optimizer_state_dict."""
    read = read_of(migration, site.call) if site.call is not None else None
    if read is None:
        return Outcome(Level.MANUAL, "optimizer.state_dict is not called here", holds=True)
    plan = plan_of(migration, read)
    if plan.problem:
        return Outcome(Level.MANUAL, plan.problem, plan.advice, holds=True)
    message = "the optimizer state is gathered from the shards; its keys are parameter names instead of numbers"
    if plan.guard is not None:
        message += ", on all ranks in front of the rank guard"
    outcome = Outcome(Level.SAFE, "; ".join([message, *plan.notes]))
    if plan.notes:
        outcome.level = Level.REVIEW
    write_read(migration, read, plan, outcome)
    return outcome


RULE = Rule(
    id="FS404",
    title="Optimizer state dicts",
    why=(
        "The state of an optimizer over sharded parameters is sharded: torch.save of it on rank 0 writes a fraction and "
        "raises nothing. get_optimizer_state_dict gathers it, keyed by parameter name."
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
            after="",
        ),
    ),
    proof=("nanogpt_ddp",),
)
