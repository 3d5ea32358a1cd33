"""``FSDP.set_state_dict_type(…)`` and ``get_state_dict_type``: the kind of state dict as a setting of the model."""

from __future__ import annotations

import ast

from ..analysis.symbols import FSDP1
from ..findings import Level
from ..migration import Migration
from ..rule import Example, Outcome, Rule
from ..sites import Site
from ..state.chosen import qualify
from ..state.contexts import configs_from_elsewhere, read_context
from ..text.generated import removed
from ..view import FileView


def check(site: Site, migration: Migration) -> Outcome:
    """The setting goes; the state dicts that are taken under it say what they are."""
    view, call = site.view, site.call
    if site.role == "keyword":
        return Outcome(Level.SAFE, "part of its call", silent=True)
    statement = view.statement(site.node)
    if call is None or site.member == "get_state_dict_type" or not isinstance(statement, ast.Expr):
        return Outcome(
            Level.MANUAL,
            f"the result of {site.member} is used: FSDP2 keeps no such setting",
            "Keep the StateDictOptions in a variable of your own and pass them to the helpers.",
            holds=True,
        )
    context = read_context(migration, view, call)
    if context.kind == "unknown":
        return Outcome(
            Level.MANUAL,
            f"the kind of state dict that is set here is only known at run time{_because(view, call)}",
            "Keep StateDictOptions in the place of the configs (full_state_dict=True for FULL_STATE_DICT, cpu_offload=True for "
            "rank0_only=True), and pass them to get_model_state_dict, get_optimizer_state_dict and the setters wherever state "
            "is taken or loaded; configs of FSDP1 that users hand in have to be refused or turned into them.",
            holds=True,
        )
    outcome = Outcome(Level.SAFE, "the setting goes: the state dicts taken under it say themselves what they are")
    if context.choice is not None:
        outcome.patches.append(view.replace(statement, context.choice.check, "a kind by another name is refused"))
        qualify(outcome, context.choice)
        return outcome
    outcome.patches.append(removed(view, statement, "FSDP2 has no such setting"))
    return outcome


def _because(view: FileView, call: ast.Call) -> str:
    """What is not known: the kind itself, or configs that may be made elsewhere."""
    strangers = configs_from_elsewhere(view, call)
    if not strangers:
        return ""
    return f": {' and '.join(strangers)} may hold what no call in these files makes"


RULE = Rule(
    id="FS410",
    title="set_state_dict_type",
    why="FSDP2 keeps no kind of state dict on the model: the options are given where the state is taken or loaded.",
    symbols=tuple(f"{FSDP1}.{which}_state_dict_type{end}" for which in ("set", "get") for end in ("", "(*")),
    roles=("call", "keyword", "use"),
    check=check,
    sources=("https://docs.pytorch.org/docs/stable/distributed.checkpoint.html",),
    examples=(
        Example(
            before="""\
import torch
from torch.distributed.fsdp import FullStateDictConfig, FullyShardedDataParallel, StateDictType


def save(model: FullyShardedDataParallel, path):
    FullyShardedDataParallel.set_state_dict_type(
        model, StateDictType.FULL_STATE_DICT, FullStateDictConfig(rank0_only=True)
    )
    weights = model.state_dict()
    torch.save(weights, path)
""",
            after="""\
import torch
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.fsdp import FSDPModule


def save(model: FSDPModule, path):
    weights = get_model_state_dict(
        model, options=StateDictOptions(full_state_dict=True, cpu_offload=True)
    )
    torch.save(weights, path)
""",
        ),
        Example(
            before="""\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, StateDictType


def save(net, config):
    model = FSDP(net, use_orig_params=True)
    FSDP.set_state_dict_type(model, StateDictType[config.kind])
    return model.state_dict()
""",
            after="""\
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.fsdp import fully_shard


def save(net, config):
    fully_shard(net)
    model = net
    assert config.kind in ("FULL_STATE_DICT", "SHARDED_STATE_DICT"), config.kind
    return get_model_state_dict(
        model, options=StateDictOptions(full_state_dict=config.kind == "FULL_STATE_DICT")
    )
""",
            level=Level.REVIEW,
            note="the kind is chosen at run time: its name decides where the state is taken",
        ),
    ),
    proof=("trainer_files", "state_dict_kind_from_config"),
)
