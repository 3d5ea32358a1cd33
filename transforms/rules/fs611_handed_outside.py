"""A wrapped model handed to code outside the repository, which may do anything with it."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from ..analysis.values import Wrapped
from ..findings import Level
from ..foreign import class_behind, foreign_name, saves_itself
from ..migration import Migration
from ..rule import Example, Outcome, Rule
from ..sites import Site

_SAVERS = ("checkpoint", "save", "snapshot")


def find(migration: Migration) -> Iterator[Site]:
    """Calls of outside code that get a wrapped model as an argument."""
    for view in migration.views():
        for node in view.nodes(ast.Call):
            for argument in [*node.args, *(keyword.value for keyword in node.keywords)]:
                values = tuple(value for value in view.values(argument) if isinstance(value, Wrapped))
                group = migration.groups.of(values) if values else None
                name = foreign_name(migration, view, node) if group is not None else None
                if name is not None:
                    yield Site(view, node, f"outside.{name}", "hazard", group, values, node)
                    break


def check(site: Site, migration: Migration) -> Outcome:
    name = site.symbol.removeprefix("outside.")
    last = name.rpartition(".")[2].lower()
    here = class_behind(migration, site.view, site.call) if site.call is not None else None
    if any(part in last for part in _SAVERS) and (here is None or not saves_itself(migration, here)):
        return Outcome(
            Level.MANUAL,
            f"{name} gets the wrapped model and may save its state dict, which holds this rank's shards under FSDP2",
            "Hand it get_model_state_dict(model, options=StateDictOptions(full_state_dict=True)) instead of the model, or an "
            "object whose state_dict() and load_state_dict() gather and share out; either is called on all ranks.",
            holds=True,
        )
    return Outcome(
        Level.REVIEW,
        f"{name} is outside these files and gets the wrapped model, which is sharded now",
        "Look whether it reads parameters or state dicts, copies the model, or calls parts of it by themselves.",
    )


_WATCHED = """\
import torch
import wandb
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

model = FSDP(torch.nn.Linear(2, 2))
wandb.watch(model)
"""
_SAVED = """\
import torch
from fvcore.common.checkpoint import Checkpointer
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

model = FSDP(torch.nn.Linear(2, 2))
checkpointer = Checkpointer(model, "runs")
"""

RULE = Rule(
    id="FS611",
    title="A wrapped model in the hands of other libraries",
    why=(
        "What a library does with the model cannot be seen from these files. One that saves state dicts writes one rank's "
        "rows without an error; one that copies the model, or runs parts of it, raises."
    ),
    symbols=("outside.*",),
    roles=("hazard",),
    check=check,
    examples=(
        Example(
            _WATCHED,
            _WATCHED.replace("FullyShardedDataParallel as FSDP", "fully_shard").replace(
                "model = FSDP(torch.nn.Linear(2, 2))", "model = torch.nn.Linear(2, 2)\nfully_shard(model)"
            ),
            Level.REVIEW,
        ),
        Example(_SAVED, _SAVED, Level.MANUAL),
    ),
    find=find,
)
