"""Old checkpoint symbols that nothing takes the place of, and methods of FSDP1 that are handed on uncalled."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from ..analysis.symbols import DDP, FSDP1
from ..findings import Level
from ..migration import Migration
from ..rule import Example, Outcome, Rule
from ..sites import Site
from ..state.loads import TO_LOAD
from ..state.reads import OPTIMIZER_READS

_FSDP = "torch.distributed.fsdp"
_ADVICE = {
    "rekey_optim_state_dict": "The helpers of DCP know parameter names only. Convert old files with integer keys once: "
    "number i is the i-th parameter over the old optimizer's groups.",
    "OptimStateKeyType": "The helpers of DCP know parameter names only; drop the choice.",
    "StateDictSettings": "Keep the StateDictOptions in a variable of your own.",
}
_HANDED_ON = (
    "Hand on a function of your own that calls get_model_state_dict, set_model_state_dict, get_optimizer_state_dict or "
    "set_optimizer_state_dict."
)


def find(migration: Migration) -> Iterator[Site]:
    """Methods of the wrapper classes as functions: what they are called with may be a model of any group."""
    for site in [site for path in sorted(migration.sites) for site in migration.sites[path]]:
        if site.role == "reference" and site.symbol in _AS_FUNCTIONS:
            yield from (replace(site, group=group) for group in migration.groups.all if group is not site.group)


def check(site: Site, migration: Migration) -> Outcome:
    """Left to a person: the group cannot move while this asks for FSDP1."""
    if site.role == "keyword":
        return Outcome(Level.SAFE, "part of its call", silent=True)
    name = next((name for name in _ADVICE if name in site.symbol), "")
    if name:
        return Outcome(Level.MANUAL, f"{site.member} has no counterpart in FSDP2", _ADVICE[name], holds=True)
    return Outcome(Level.MANUAL, f"{site.member} of the wrapper class is used as a function", _HANDED_ON, holds=True)


_CLASS_METHODS = ("state_dict", "load_state_dict", "state_dict_type", "set_state_dict_type", "summon_full_params")

_AS_FUNCTIONS = tuple(f"{owner}.{name}" for owner in (FSDP1, DDP) for name in _CLASS_METHODS)

RULE = Rule(
    id="FS416",
    title="Checkpoint symbols without a counterpart",
    why="A program that still asks FSDP1 for these would fail once its model is sharded by fully_shard.",
    symbols=(
        *(f"{FSDP1}.rekey_optim_state_dict{end}" for end in ("", "(*")),
        *(f"{_FSDP}.{name}{end}" for name in ("OptimStateKeyType", "StateDictSettings") for end in ("", ".*", "(*")),
        *_AS_FUNCTIONS,
        *(f"{owner}.{name}" for owner in (FSDP1, DDP) for name in (*OPTIMIZER_READS, *TO_LOAD)),
    ),
    roles=("call", "keyword", "use", "reference", "annotation", "isinstance", "base"),
    check=check,
    find=find,
    sources=("https://docs.pytorch.org/docs/stable/distributed.checkpoint.html",),
    examples=(
        Example(
            before="""\
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, OptimStateKeyType


def main(net, state):
    model = FSDP(net)
    return FSDP.rekey_optim_state_dict(state, OptimStateKeyType.PARAM_NAME, model)
""",
            after="""\
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, OptimStateKeyType


def main(net, state):
    model = FSDP(net)
    return FSDP.rekey_optim_state_dict(state, OptimStateKeyType.PARAM_NAME, model)
""",
            level=Level.MANUAL,
        ),
    ),
)
