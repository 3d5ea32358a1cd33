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
from ..view import FileView


def check(site: Site, migration: Migration) -> Outcome:
    """A config that is kept in a variable is rewritten there; one inside a context goes with it."""
    view, call = site.view, site.call
    if site.role == "keyword":
        return Outcome(Level.SAFE, "part of its call", silent=True)
    if site.role == "annotation":
        outcome = Outcome(Level.SAFE, "the options of DCP take the place of FSDP1's config")
        name = migration.use(outcome, view, _OPTIONS, site.node)
        outcome.patches.append(view.replace(site.node, name, _WHY))
        return outcome
    if site.role == "isinstance":
        return _test(site, migration)
    if call is None:
        return Outcome(
            Level.MANUAL,
            f"{site.member} is handed on as a class here, and what it is called with then is not seen",
            f"Hand on a function of the same name and parameters in its place, so that configurations may go on naming it: "
            f"{_function_for(site.member)}.",
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
        text = migration.use(outcome, view, _OPTIONS, call) + "()"
    outcome.patches.append(view.replace(call, text, _WHY))
    return outcome


def _test(site: Site, migration: Migration) -> Outcome:
    """A demand for a config becomes one for the options; what is done for one kind alone is left to a person."""
    view, test = site.view, site.view.parents[site.node]
    if not isinstance(test, ast.Call) or not _is_demand(view, test):
        return Outcome(
            Level.MANUAL,
            f"what is tested for {site.member} here will be StateDictOptions, as all other configs will",
            "Ask for what the test is about: options.full_state_dict, options.cpu_offload.",
            holds=True,
        )
    outcome = Outcome(
        Level.REVIEW,
        "all configs are StateDictOptions: the demand is met by those for models and for optimizers, and of any kind",
    )
    name = migration.use(outcome, view, _OPTIONS, site.node)
    outcome.patches.append(view.replace(site.node, name, _WHY))
    return outcome


def _is_demand(view: FileView, test: ast.Call) -> bool:
    """``assert isinstance(…)``, or ``if not isinstance(…): raise …`` and nothing else."""
    parent = view.parents[test]
    if isinstance(parent, ast.Assert):
        return parent.test is test
    branch = view.parents[parent] if isinstance(parent, ast.UnaryOp) and isinstance(parent.op, ast.Not) else None
    if not isinstance(branch, ast.If) or branch.test is not parent or branch.orelse:
        return False
    return len(branch.body) == 1 and isinstance(branch.body[0], ast.Raise)


def _function_for(member: str) -> str:
    """A function that takes what a config takes and gives the options that say the same."""
    if not member.startswith("Full"):
        return f"def {member}(offload_to_cpu=False): return StateDictOptions()"
    return (
        f"def {member}(offload_to_cpu={'Optim' in member}, rank0_only=False): "
        "return StateDictOptions(full_state_dict=True, cpu_offload=rank0_only)"
    )


_OPTIONS = "torch.distributed.checkpoint.state_dict.StateDictOptions"
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
        Example(
            before="""\
from torch.distributed.fsdp import StateDictConfig


def checked(config):
    if not isinstance(config, StateDictConfig):
        raise TypeError(type(config))
    return config
""",
            after="""\
from torch.distributed.checkpoint.state_dict import StateDictOptions


def checked(config):
    if not isinstance(config, StateDictOptions):
        raise TypeError(type(config))
    return config
""",
            level=Level.REVIEW,
            note="both kinds of configs are StateDictOptions",
        ),
    ),
    proof=("finetuning_package", "trainer_class", "state_dict_kind_from_config"),
)
