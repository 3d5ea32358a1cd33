"""Optimizers built before the wrap: they would hold parameters that are no longer the model's."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from ..findings import Level
from ..groups import Group, Wrap
from ..migration import Migration
from ..moves import Meeting, Move, meeting_of, sound_move
from ..rule import Example, Outcome, Rule
from ..sites import Site

SYMBOL = "torch.optim.Optimizer"
_ADVICE = (
    "Build the optimizer after fully_shard, and its scheduler and the loading of its state after it: sharding replaces "
    "the model's parameters."
)


def find(migration: Migration) -> Iterator[Site]:
    """Optimizers of a group whose construction runs before one of its wraps, or cannot be ordered."""
    for group in migration.groups.all:
        for optimizer in group.optimizers:
            view, call = migration.program.call_node(optimizer.site)
            if _early_wraps(migration, group, (view, call)) or _unordered(migration, group, (view, call)):
                yield Site(view, call, SYMBOL, "hazard", group, (optimizer,), call)


def _early_wraps(migration: Migration, group: Group, place: tuple[object, ast.AST]) -> list[Wrap]:
    return [
        wrap for wrap in group.wraps
        if migration.order.relation(place, (wrap.view, wrap.node)) in ("before", "both")  # pyright: ignore[reportArgumentType]
    ]  # fmt: skip


def _unordered(migration: Migration, group: Group, place: tuple[object, ast.AST]) -> bool:
    return all(
        not migration.order.meetings(place, (wrap.view, wrap.node)) for wrap in group.wraps  # pyright: ignore[reportArgumentType]
    )  # fmt: skip


def check(site: Site, migration: Migration) -> Outcome:
    group, view, call = site.group, site.view, site.call
    assert group is not None and call is not None
    wraps = _early_wraps(migration, group, (view, call))
    if not wraps:
        return Outcome(
            Level.REVIEW,
            "nothing here shows whether this optimizer is built before or after the model is sharded",
            _ADVICE,
        )
    meetings = [meeting_of(migration, (view, call), wrap) for wrap in wraps]
    known = [meeting for meeting in meetings if meeting is not None]
    if len(known) != len(meetings) or len({id(meeting.block) for meeting in known}) != 1:
        places = ", ".join(wrap.place for wrap in wraps)
        return _manual(f"the optimizer is built here, before the model is wrapped at {places}")
    move = _move(migration, known[0])
    if isinstance(move, str):
        return _manual(f"the optimizer is built before the wrap: {move}")
    return Outcome(Level.SAFE, f"the optimizer was built before the wrap: {move.message}", patches=[move.patch()])


def _manual(message: str) -> Outcome:
    return Outcome(Level.MANUAL, message, _ADVICE, holds=True)


def _move(migration: Migration, meeting: Meeting) -> Move | str:
    """The move for all optimizers and wraps that come together in a block, whatever their groups."""
    return migration.once("move", id(meeting.block), lambda: _plan(migration, meeting))


def _plan(migration: Migration, meeting: Meeting) -> Move | str:
    firsts: list[int] = []
    wraps: set[int] = set()
    groups: list[Group] = []
    for group in migration.groups.all:
        for optimizer in group.optimizers:
            view, call = migration.program.call_node(optimizer.site)
            for wrap in _early_wraps(migration, group, (view, call)):
                other = meeting_of(migration, (view, call), wrap)
                if other is not None and other.block is meeting.block:
                    firsts.append(other.optimizer)
                    wraps.add(other.wrap)
                    groups.extend((group,) if group not in groups else ())
    return sound_move(migration, meeting.view, meeting.block, min(firsts), sorted(wraps), groups)


_BEFORE = """\
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

model = build()
optimizer = torch.optim.AdamW(model.parameters())
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 10)

# shard
model = FSDP(model, use_orig_params=True)
"""
_AFTER = """\
import torch
from torch.distributed.fsdp import fully_shard

model = build()
# shard
fully_shard(model)

optimizer = torch.optim.AdamW(model.parameters())
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 10)
"""

RULE = Rule(
    id="FS501",
    title="The optimizer is built on the sharded parameters",
    why=(
        "fully_shard replaces the parameters of the model. An optimizer built before holds the old ones, which get no "
        "gradients: its steps change nothing and nothing raises; the loss drifted off by 9.7e-2 in six steps."
    ),
    symbols=(SYMBOL,),
    roles=("hazard",),
    check=check,
    find=find,
    sources=("https://github.com/pytorch/pytorch/issues/149205",),
    proof=("nanogpt_ddp", "trainer_class"),
    examples=(Example(_BEFORE, _AFTER),),
)
