"""``StateDictType`` as a value: in configurations, comparisons and annotations."""

from __future__ import annotations

import ast

from ..findings import Level
from ..migration import Migration
from ..rule import Example, Outcome, Rule
from ..sites import Site
from ..state.chosen import STATE_DICT_TYPE
from ..state.opened import is_context_call
from ..text.spelling import quoted
from ..view import FileView


def check(site: Site, migration: Migration) -> Outcome:
    """A member becomes its name as a string; what stood in a state_dict_type call goes with it."""
    view, node = site.view, site.node
    if _in_context_call(view, node):
        return Outcome(Level.SAFE, "goes with the state_dict_type call that it is given to")
    if site.symbol != STATE_DICT_TYPE:
        parent = view.parents[node]
        if isinstance(parent, ast.Attribute):
            if parent.attr != "name":
                return _manual(f"reads .{parent.attr} of a member of StateDictType")
            node = parent
        outcome = Outcome(Level.SAFE, "the member becomes its name: FSDP2 has no such enum")
        outcome.patches.append(view.replace(node, quoted(view, site.member), "an enum of FSDP1 becomes a string"))
        return outcome
    return _mention(site)


def _mention(site: Site) -> Outcome:
    """The class itself: an annotation, a lookup by name, an isinstance test."""
    view, node = site.view, site.node
    parent = view.parents[node]
    outcome = Outcome(Level.SAFE, "the enum becomes a string: FSDP2 has no such enum")
    why = "an enum of FSDP1 becomes a string"
    if isinstance(parent, ast.Subscript) and parent.value is node and site.role == "reference":
        outcome.patches.append(view.replace(parent, (view.keep(parent.slice),), why))
        return outcome
    if site.role in ("annotation", "isinstance"):
        outcome.patches.append(view.replace(node, "str", why))
        return outcome
    return _manual("the enum itself is used as a value")


def _manual(what: str) -> Outcome:
    return Outcome(
        Level.MANUAL,
        f"{what}, which has no counterpart in FSDP2",
        "Use the strings FULL_STATE_DICT and SHARDED_STATE_DICT, or a flag of your own.",
    )


def _in_context_call(view: FileView, node: ast.AST) -> bool:
    for ancestor in view.ancestors(node):
        if isinstance(ancestor, ast.Call):
            return is_context_call(view, ancestor) or is_context_call(view, ancestor, "set_state_dict_type")
        if isinstance(ancestor, ast.stmt):
            return False
    return False


RULE = Rule(
    id="FS408",
    title="StateDictType",
    why=(
        "FSDP2 has no StateDictType. Where a program keeps one in its configuration to choose between formats, a "
        "string does."
    ),
    symbols=(STATE_DICT_TYPE, f"{STATE_DICT_TYPE}.*"),
    roles=("reference", "annotation", "isinstance", "use"),
    check=check,
    sources=("https://docs.pytorch.org/docs/stable/fsdp.html",),
    examples=(
        Example(
            before="""\
from dataclasses import dataclass

from torch.distributed.fsdp import StateDictType


@dataclass
class Config:
    checkpoint_type: StateDictType = StateDictType.FULL_STATE_DICT


def is_sharded(config, name):
    config.checkpoint_type = StateDictType[name]
    return config.checkpoint_type == StateDictType.SHARDED_STATE_DICT
""",
            after="""\
from dataclasses import dataclass


@dataclass
class Config:
    checkpoint_type: str = "FULL_STATE_DICT"


def is_sharded(config, name):
    config.checkpoint_type = name
    return config.checkpoint_type == "SHARDED_STATE_DICT"
""",
        ),
    ),
    proof=("finetuning_package", "state_dict_kind_from_config"),
)
