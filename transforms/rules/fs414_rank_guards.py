"""Forwards behind rank guards: some ranks gather, the others do not come, and the job hangs."""

from __future__ import annotations

from collections.abc import Iterator

from ..evaluation import runs_of
from ..findings import Level
from ..migration import Migration
from ..rank_guards import Guard, GuardFinder
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
    """Left to a person: what else the other ranks would then do is theirs to decide."""
    finder = migration.once("guards", None, lambda: GuardFinder(migration.program))
    guard = finder.around(site.view, site.node)[0]
    called = site.view.text(site.call.func) if site.call is not None else "the model"
    return Outcome(
        Level.MANUAL,
        f"{called} runs the model on some ranks only ({_place(guard)}): a forward of a sharded model gathers parameters "
        "from all ranks, so this hangs",
        "Let all ranks make this call on the same batches and keep only printing and writing behind the guard; mind what "
        "the others then do, too: draw random numbers, move on in an iterator, decide by a value that only rank 0 had.",
        holds=True,
    )


def _place(guard: Guard) -> str:
    if guard.test is None:
        return f"its function has a rank-0 decorator, line {guard.statement.lineno}"
    return f"behind `{guard.view.text(guard.test)}`, line {guard.test.lineno}"


RULE = Rule(
    id="FS414",
    title="Forwards behind rank guards",
    why=(
        "DDP's forward in evaluation is local, so many scripts evaluate or sample on rank 0 alone. A forward of a sharded "
        "model is collective: the other ranks never join, and the job hangs until the watchdog ends it."
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


def main(rank, batch):
    model = DDP(torch.nn.Linear(2, 2))
    if rank == 0:
        print(model(batch))
""",
            after="""\
import torch
from torch.nn.parallel import DistributedDataParallel as DDP


def main(rank, batch):
    model = DDP(torch.nn.Linear(2, 2))
    if rank == 0:
        print(model(batch))
""",
            level=Level.MANUAL,
        ),
    ),
)
