"""``FullStateDictConfig`` and its kin become ``StateDictOptions``."""

from __future__ import annotations

import ast

from ..findings import Level
from ..migration import Migration
from ..rule import Example, Outcome, Rule
from ..sites import Site
from ..state.contexts import CONFIG_CLASSES, flags_of
from ..state.opened import is_context_call
from ..state.plans import config_options
from ..state.writing import options_text


def check(site: Site, migration: Migration) -> Outcome:
    """A config that is kept in a variable is rewritten there; one inside a context goes with it."""
    view, call = site.view, site.call
    if site.role == "keyword":
        return Outcome(Level.SAFE, "part of its call", silent=True)
    if site.role == "annotation":
        outcome = Outcome(Level.SAFE, "the options of DCP take the place of FSDP1's config")
        name = migration.use(outcome, view, "torch.distributed.checkpoint.state_dict.StateDictOptions", site.node)
        outcome.patches.append(view.replace(site.node, name, _WHY))
        return outcome
    if call is None:
        return Outcome(
            Level.MANUAL,
            f"{site.member} is used as a value here",
            "Use torch.distributed.checkpoint.state_dict.StateDictOptions.",
            holds=True,
        )
    parent = view.parents[call]
    if isinstance(parent, ast.keyword):
        parent = view.parents[parent]
    if isinstance(parent, ast.Call) and (
        is_context_call(view, parent) or is_context_call(view, parent, "set_state_dict_type")
    ):
        return Outcome(Level.SAFE, "becomes the options of the state dicts that are taken under it")
    config = flags_of(view, call)
    notes: list[str] = []
    options = config_options("full" if site.member.startswith("Full") else "sharded", config, notes)
    outcome = Outcome(Level.REVIEW if notes else Level.SAFE, "; ".join(["the config becomes StateDictOptions", *notes]))
    text = options_text(migration, options, outcome, view, call)
    if not text:
        text = migration.use(outcome, view, "torch.distributed.checkpoint.state_dict.StateDictOptions", call) + "()"
    outcome.patches.append(view.replace(call, text, _WHY))
    return outcome


_WHY = "FSDP1's state dict configs become the options of DCP's helpers"

RULE = Rule(
    id="FS409",
    title="State dict configs",
    why=(
        "rank0_only=True is cpu_offload=True: the other ranks get an empty dict. offload_to_cpu without rank0_only has "
        "no counterpart, since cpu_offload together with full_state_dict always leaves the result to rank 0."
    ),
    symbols=(
        *(name + end for name in sorted(CONFIG_CLASSES) for end in ("", "(*")),
        "torch.distributed.fsdp.StateDictConfig",
        "torch.distributed.fsdp.OptimStateDictConfig",
    ),
    roles=("call", "keyword", "reference", "annotation", "isinstance", "base"),
    check=check,
    sources=(
        "https://docs.pytorch.org/docs/stable/distributed.checkpoint.html#torch.distributed.checkpoint.state_dict.StateDictOptions",
    ),
    examples=(
        Example(
            before="""\
from torch.distributed.fsdp import FullStateDictConfig

policy = FullStateDictConfig(offload_to_cpu=True, rank0_only=True)
""",
            after="""\
from torch.distributed.checkpoint.state_dict import StateDictOptions

policy = StateDictOptions(full_state_dict=True, cpu_offload=True)
""",
        ),
    ),
    proof=("finetuning_package", "trainer_class", "state_dict_kind_from_config"),
)
