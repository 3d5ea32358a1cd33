"""A forward between backward and step: units that stay gathered behind it do not see what the step changes."""

from __future__ import annotations

from collections.abc import Iterator

from ..analysis.values import Optimizer
from ..findings import Level
from ..migration import Migration
from ..ranks.evaluation import reshard_lines
from ..rule import Example, Outcome, Rule
from ..sites import Site
from ..state.first_step import steps_of
from ..training.after_forward import runs_behind_another_forward
from ..training.in_scope import model_at

_SYMBOL = "torch.optim.Optimizer.step.behind_forward"
_ADVICE = (
    "Call reshard() on every FSDPModule of the model in front of the step, or run the forward before the backward or behind "
    "the step."
)


def find(migration: Migration) -> Iterator[Site]:
    """Steps whose gradients are older than the last forward of the model."""
    for group in migration.groups.all:
        for view, call in steps_of(migration, group):
            places = [call.func, *call.args]
            values = tuple(v for place in places for v in view.values(place) if isinstance(v, Optimizer))
            relations = {migration.order.relation((view, call), (wrap.view, wrap.node)) for wrap in group.wraps}
            if relations != {"before"} and runs_behind_another_forward(migration, view, call, group, values):
                yield Site(view, call, _SYMBOL, "hazard", group, values, call)


def check(site: Site, migration: Migration) -> Outcome:
    view, group, call = site.view, site.group, site.call
    assert group is not None and call is not None
    if "DDP" not in group.kinds:
        return Outcome(
            Level.REVIEW,
            "a forward runs between backward and step: the units that it leaves gathered (the root; with SHARD_GRAD_OP all) "
            "run the next forward without the update, as FSDP1's did, unless they are resharded between; FSDP1 also saved them "
            "so if no backward came before",
            _ADVICE,
        )
    model, statement = model_at(migration.groups, view, call, group), view.statement(call)
    if model is None or not view.stands_alone(statement):
        return Outcome(
            Level.MANUAL,
            "a forward runs between backward and step: the units that it leaves gathered run the next one without the update",
            _ADVICE,
            holds=True,
        )
    outcome = Outcome(
        Level.REVIEW,
        "a forward runs between backward and step: the units are resharded, or the next forward would run without the update",
    )
    if "FSDP1" in group.kinds:
        outcome.message += "; FSDP1's did run without it"
    lines = reshard_lines(migration, outcome, view, model, view.indent(statement), call)
    outcome.patches.append(view.insert_before(statement, lines, "the next forward sees the update"))
    return outcome


_LOOP = """\
for batch in batches:
    model(batch).sum().backward()
    with torch.no_grad():
        print(model(held_out).sum())
    optimizer.step()
    optimizer.zero_grad()
"""
_DDP = """\
import torch
from torch.nn.parallel import DistributedDataParallel as DDP

model = DDP(build(), broadcast_buffers=False)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
"""
_DDP_AFTER = """\
import torch
import torch.distributed as dist
from torch.distributed.fsdp import FSDPModule, fully_shard

model = build()
for tensor in [*model.parameters(), *model.buffers()]:
    dist.broadcast(tensor.detach(), src=0)
fully_shard(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
"""
_RESHARDED = _LOOP.replace(
    "    optimizer.step()\n",
    "    # a forward without a backward leaves whole parameters behind\n"
    "    for module in model.modules():\n        if isinstance(module, FSDPModule):\n            module.reshard()\n"
    "    optimizer.step()\n",
)
_FSDP1 = """\
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

model = FSDP(build(), use_orig_params=True)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
"""
_FSDP1_AFTER = """\
import torch
from torch.distributed.fsdp import fully_shard

model = build()
fully_shard(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
"""

RULE = Rule(
    id="FS316",
    title="A forward between backward and step",
    why=(
        "After a forward without backward the root, and every unit with reshard_after_forward=False, stays gathered. A step "
        "then changes the shards, and the next forward still computes with what was gathered before: the model lags by a "
        "step. DDP has no such copy. FSDP1 lags as well, and what it saves in between lacks the last update."
    ),
    symbols=(_SYMBOL,),
    roles=("hazard",),
    check=check,
    find=find,
    sources=("an evaluation between backward and step, run under DDP, FSDP1 and FSDP2 on torch 2.13, two ranks",),
    examples=(
        Example(_DDP + _LOOP, _DDP_AFTER + _RESHARDED, Level.REVIEW),
        Example(_FSDP1 + _LOOP, _FSDP1_AFTER + _LOOP, Level.REVIEW),
    ),
)
