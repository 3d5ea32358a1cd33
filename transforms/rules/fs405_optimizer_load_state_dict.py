"""``optimizer.load_state_dict()`` of an optimizer whose model is sharded."""

from __future__ import annotations

from collections.abc import Iterator

from ..findings import Level
from ..migration import Migration
from ..rank_guards import GuardFinder
from ..rule import Example, Outcome, Rule
from ..sites import Site
from ..state_loads import plan_load, write_load
from ..state_reads import optimizer_calls

_SYMBOL = "torch.optim.Optimizer.load_state_dict"
_ADVICE = (
    "On all ranks: set_optimizer_state_dict(model, optimizer, state, options=StateDictOptions(full_state_dict=True)), "
    "after the learning-rate scheduler was built."
)


def find(migration: Migration) -> Iterator[Site]:
    """Every optimizer.load_state_dict() of a group."""
    for view, call, group in optimizer_calls(migration, "load_state_dict"):
        yield Site(view, call, _SYMBOL, "hazard", group, tuple(view.values(call.func)), call)


def check(site: Site, migration: Migration) -> Outcome:
    """The load becomes set_optimizer_state_dict."""
    view, call = site.view, site.call
    plan = plan_load(migration, view, call, site.group) if call is not None else None
    if call is None or plan is None:
        return Outcome(Level.MANUAL, "optimizer.load_state_dict is not called with a state dict here", _ADVICE, holds=True)
    if plan.model is None:
        return Outcome(
            Level.MANUAL, "no name here refers to the model whose optimizer this is", "Pass the model in. " + _ADVICE, holds=True
        )
    finder = migration.once("guards", None, lambda: GuardFinder(migration.program))
    guard = next(iter(finder.around(view, call)), None) or finder.callers_guarded(view, call)
    if guard is not None:
        what = f"only some ranks load here (guard at line {guard.statement.lineno}), and loading is collective"
        return Outcome(Level.MANUAL, what, _ADVICE, holds=True)
    message = "optimizer state is loaded by parameter name"
    if site.group is not None and "DDP" in site.group.kinds:
        message += "; files that the old program wrote under DDP have numbers for names and are refused with an error"
    outcome = Outcome(Level.SAFE, message)
    write_load(migration, view, call, plan, outcome)
    return outcome


RULE = Rule(
    id="FS405",
    title="Loading optimizer state",
    why=(
        "optimizer.load_state_dict() puts full tensors beside sharded parameters: the load succeeds and the first step "
        "raises. set_optimizer_state_dict shards them. Files of FSDP1's optim_state_dict have the same names; with flat "
        "parameters they share one step counter, which then counts several times a step unless it is cloned."
    ),
    symbols=(_SYMBOL,),
    roles=("hazard",),
    check=check,
    find=find,
    advice=_ADVICE,
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
            after="",
        ),
    ),
    proof=("nanogpt_ddp", "finetuning_package", "full_optimizer_resume"),
)
