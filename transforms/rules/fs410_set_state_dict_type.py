"""``FSDP.set_state_dict_type(…)`` and ``get_state_dict_type``: the kind of state dict as a setting of the model."""

from __future__ import annotations

import ast

from ..analysis.symbols import FSDP1
from ..findings import Level
from ..migration import Migration
from ..rule import Example, Outcome, Rule
from ..sites import Site
from ..state.chosen import qualify
from ..state.contexts import read_context
from ..text.generated import removed


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
            "the kind of state dict that is set here is only known at run time",
            "Pass StateDictOptions to get_model_state_dict where the state is taken.",
            holds=True,
        )
    outcome = Outcome(Level.SAFE, "the setting goes: the state dicts taken under it say themselves what they are")
    if context.choice is not None:
        outcome.patches.append(view.replace(statement, context.choice.check, "a kind by another name is refused"))
        qualify(outcome, context.choice)
        return outcome
    outcome.patches.append(removed(view, statement, "FSDP2 has no such setting"))
    return outcome


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
