"""``FSDP.optim_state_dict`` and its older kin: reading the state of an optimizer."""

from __future__ import annotations

from ..analysis.symbols import FSDP1
from ..findings import Level
from ..migration import Migration
from ..rule import Example, Outcome, Rule
from ..sites import Site
from ..state.outcomes import write_state
from ..state.plans import plan_of
from ..state.reads import OPTIMIZER_READS, read_of


def check(site: Site, migration: Migration) -> Outcome:
    """FSDP1's static reader becomes get_optimizer_state_dict."""
    if site.role == "keyword":
        return Outcome(Level.SAFE, "part of its call", silent=True)
    read = read_of(migration, site.call) if site.call is not None else None
    if read is None:
        return Outcome(
            Level.MANUAL,
            f"{site.member} is not called with a model and an optimizer here",
            "Call get_optimizer_state_dict(model, optimizer, options=StateDictOptions(…)).",
            holds=True,
        )
    plan = plan_of(migration, read)
    if plan.problem:
        return Outcome(Level.MANUAL, plan.problem, plan.advice, holds=True)
    outcome = Outcome(Level.SAFE, f"{site.member} becomes get_optimizer_state_dict: the same names and the same values")
    write_state(migration, read, plan, outcome)
    notes = [*plan.notes]
    if site.call is not None and any(keyword.arg == "group" for keyword in site.call.keywords):
        notes.append("group goes: the state is gathered over the mesh of its parameters, and all of its ranks have to call")
    if notes:
        outcome.level = Level.REVIEW
        outcome.message = "; ".join([outcome.message, *notes])
    return outcome


RULE = Rule(
    id="FS406",
    title="Optimizer state through FSDP1's static methods",
    why=(
        "optim_state_dict, full_optim_state_dict and sharded_optim_state_dict know FSDP1's flat parameters only. "
        "get_optimizer_state_dict uses the same parameter names as keys, so files keep their form."
    ),
    symbols=tuple(f"{FSDP1}.{name}{end}" for name in OPTIMIZER_READS for end in ("", "(*")),
    roles=("call", "keyword", "use"),
    check=check,
    sources=("https://docs.pytorch.org/docs/stable/distributed.checkpoint.html",),
    examples=(
        Example(
            before="""\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


def optimizer_state(model, optimizer):
    return FSDP.full_optim_state_dict(model, optimizer)
""",
            after="""\
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_optimizer_state_dict


def optimizer_state(model, optimizer):
    return get_optimizer_state_dict(
        model, optimizer, options=StateDictOptions(full_state_dict=True, cpu_offload=True)
    )
""",
        ),
    ),
    proof=("finetuning_package", "full_optimizer_resume", "state_dict_kind_from_config"),
)
