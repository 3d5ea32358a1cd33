"""Forwards behind rank guards: some ranks gather, the others do not come, and the job hangs."""

from __future__ import annotations

from collections.abc import Iterator

from ..findings import Level
from ..migration import Migration
from ..ranks.evaluation import runs_of
from ..ranks.guards import Guard, GuardFinder
from ..ranks.inside_out import turn_inside_out
from ..ranks.moves import Move, move_of, write_move
from ..ranks.regions import Region, region_of
from ..rule import Example, Outcome, Rule
from ..sites import Site

_SYMBOL = "torch.nn.Module.__call__"


def find(migration: Migration) -> Iterator[Site]:
    """Calls that run a group's model and stand behind a rank guard."""
    finder = migration.once("guards", None, lambda: GuardFinder(migration.program))
    for group in migration.groups.all:
        for number in sorted(runs_of(migration, group)):
            view, call = migration.program.call_node(number)
            if not finder.around(view, call):
                continue
            relations = {migration.order.relation((view, call), (wrap.view, wrap.node)) for wrap in group.wraps}
            if relations != {"before"}:
                yield Site(view, call, _SYMBOL, "hazard", group, tuple(view.values(call.func)), call)


def check(site: Site, migration: Migration) -> Outcome:
    """All ranks make the call in front of the guard where that is sound; else it is left to a person."""
    finder = migration.once("guards", None, lambda: GuardFinder(migration.program))
    guard = finder.around(site.view, site.node)[0]
    call = site.call
    assert call is not None
    called = site.view.text(call.func)
    move = move_of(migration, finder, site.view, call)
    if isinstance(move, Move):
        message = (
            f"all ranks call {called} in front of the guard; what the others draw from torch's random numbers is "
            "taken back"
        )
        if move.prints:
            message += "; what it prints or logs now comes from every rank"
        outcome = Outcome(Level.REVIEW, message)
        write_move(migration, finder, move, outcome)
        return outcome
    region = _region(migration, finder, guard) if _stands_alone(finder, site) else move
    if isinstance(region, Region):
        return migration.once("inside out", guard.statement, lambda: _turned(migration, region))
    return Outcome(
        Level.MANUAL,
        f"{called} runs the model on some ranks only ({_place(guard)}): a forward of a sharded model gathers "
        f"parameters from all ranks, so this hangs; it stays, since {region}",
        "Let all ranks make this call on the same batches and keep only printing and writing behind the guard; mind "
        "what the others then do, too: draw random numbers, move on in an iterator, decide by a value that only rank "
        "0 had.",
        holds=True,
    )


def _stands_alone(finder: GuardFinder, site: Site) -> bool:
    return len(finder.around(site.view, site.node)) == 1 and finder.callers_guarded(site.view, site.node) is None


def _region(migration: Migration, finder: GuardFinder, guard: Guard) -> Region | str:
    return migration.once("region", guard.statement, lambda: region_of(migration, finder, guard))


def _turned(migration: Migration, region: Region) -> Outcome:
    message = (
        "all ranks run what needs the model, which takes as many batches on every rank; what writes or prints stays "
        "behind the guard, and what the others draw from torch's random numbers is taken back"
    )
    if region.reports.prints:
        message += "; what the functions that it calls print or log now comes from every rank"
    outcome = Outcome(Level.REVIEW, message)
    turn_inside_out(migration, region, outcome)
    return outcome


def _place(guard: Guard) -> str:
    if guard.kind == "deferred":
        return f"its function runs in a thread, a process, a signal handler or at exit, line {guard.statement.lineno}"
    if guard.test is None:
        return f"its function has a rank-0 decorator, line {guard.statement.lineno}"
    return f"behind `{guard.view.text(guard.test)}`, line {guard.test.lineno}"


RULE = Rule(
    id="FS414",
    title="Forwards behind rank guards",
    why=(
        "DDP's forward in evaluation is local, so many scripts evaluate or sample on rank 0 alone. A forward of a "
        "sharded model is collective: the other ranks never join, and the job hangs until the watchdog ends it."
    ),
    symbols=(_SYMBOL,),
    roles=("hazard",),
    check=check,
    find=find,
    sources=("https://docs.pytorch.org/docs/stable/distributed.fsdp.fully_shard.html",),
    examples=(
        Example(
            before="""\
import torch
from torch.nn.parallel import DistributedDataParallel as DDP


def main(rank, batch, step):
    model = DDP(torch.nn.Linear(2, 2))
    if step % 100 == 0 and rank == 0:
        output = model(batch)
        print(output)
""",
            after="""\
import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard


def main(rank, batch, step):
    model = torch.nn.Linear(2, 2)
    for tensor in [*model.parameters(), *model.buffers()]:
        dist.broadcast(tensor.detach(), src=0)
    fully_shard(model)
    if step % 100 == 0:
        # a forward needs all ranks; random numbers go on as if rank 0 alone had run it
        devices = [torch.cuda.current_device()] if torch.cuda.is_available() else []
        with torch.random.fork_rng(devices, enabled=rank != 0):
            output = model(batch)
    if step % 100 == 0 and rank == 0:
        print(output)
""",
            level=Level.REVIEW,
        ),
        Example(
            before="""\
import torch
from torch.nn.parallel import DistributedDataParallel as DDP


def evaluate(model, loader, rank):
    if rank != 0:
        return
    total = sum(model(batch).mean() for batch in loader)
    print(total)


def main(rank, loader):
    model = DDP(torch.nn.Linear(2, 2))
    evaluate(model, loader, rank)
""",
            after="""\
import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard


def evaluate(model, loader, rank):
    # forwards need all ranks; the others go on with the random numbers that they have now
    random_states = [torch.get_rng_state(), torch.cuda.get_rng_state() if torch.cuda.is_available() else None]
    total = sum(model(batch).mean() for batch in loader)

    if rank != 0:
        torch.set_rng_state(random_states[0])
        if torch.cuda.is_available():
            torch.cuda.set_rng_state(random_states[1])
        return

    print(total)


def main(rank, loader):
    model = torch.nn.Linear(2, 2)
    for tensor in [*model.parameters(), *model.buffers()]:
        dist.broadcast(tensor.detach(), src=0)
    fully_shard(model)
    evaluate(model, loader, rank)
""",
            level=Level.REVIEW,
        ),
        Example(
            before="""\
import torch
from torch.nn.parallel import DistributedDataParallel as DDP


def main(rank, batch):
    model = DDP(torch.nn.Linear(2, 2))
    if rank == 0:
        torch.save(model(batch), "output.pt")
""",
            after="""\
import torch
from torch.nn.parallel import DistributedDataParallel as DDP


def main(rank, batch):
    model = DDP(torch.nn.Linear(2, 2))
    if rank == 0:
        torch.save(model(batch), "output.pt")
""",
            level=Level.MANUAL,
        ),
    ),
    proof=("rank0_evaluation", "rank0_average"),
)
