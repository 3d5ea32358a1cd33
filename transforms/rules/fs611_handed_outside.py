"""A wrapped model handed to code outside the repository, which may do anything with it."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from ..analysis.values import Wrapped
from ..findings import Level
from ..migration import Migration
from ..rule import Example, Outcome, Rule
from ..sites import Site
from ..view import FileView

_KNOWN = ("torch.", "builtins.", "logging.", "copy.", "functools.", "itertools.", "contextlib.", "typing.")
_SAVERS = ("checkpoint", "save", "snapshot")


def find(migration: Migration) -> Iterator[Site]:
    """Calls of outside code that get a wrapped model as an argument."""
    for view in migration.views():
        for node in view.nodes(ast.Call):
            name = view.external(node.func) or _method_of_outside(view, node.func)
            if name is None or name.startswith(_KNOWN):
                continue
            for argument in [*node.args, *(keyword.value for keyword in node.keywords)]:
                values = tuple(value for value in view.values(argument) if isinstance(value, Wrapped))
                group = migration.groups.of(values) if values else None
                if group is not None:
                    yield Site(view, node, f"outside.{name}", "hazard", group, values, node)
                    break


def _method_of_outside(view: FileView, function: ast.expr) -> str | None:
    if not isinstance(function, ast.Attribute):
        return None
    owner = view.external(function.value)
    return f"{owner}.{function.attr}" if owner else None


def check(site: Site, migration: Migration) -> Outcome:
    name = site.symbol.removeprefix("outside.")
    last = name.rpartition(".")[2].lower()
    if any(part in last for part in _SAVERS):
        return Outcome(
            Level.MANUAL,
            f"{name} gets the wrapped model and may save its state dict, which holds this rank's shards under FSDP2",
            "Hand it get_model_state_dict(model, options=StateDictOptions(full_state_dict=True)) instead of the model.",
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
