"""The DDP constructor: fully_shard in place, with the broadcasts that DDP does by itself written out."""

from __future__ import annotations

import ast

from ..analysis.symbols import DDP
from ..findings import Level
from ..migration import Migration
from ..rule import Example, Outcome, Rule
from ..sharding.data_parallel import data_parallel_of
from ..sharding.data_parallel_duties import unit_advice
from ..sharding.placement import CannotPlace, place
from ..sharding.shared_definitions import share_definitions
from ..sharding.subclass_findings import built_subclass
from ..sites import Site

_BY_NAME = "Write the arguments out, each by its name, in the place of *arguments, and run the tool again."


def check(site: Site, migration: Migration) -> Outcome:
    view, call = site.view, site.call
    assert call is not None
    subclass = built_subclass(site)
    if subclass is not None:
        return subclass
    if any(isinstance(argument, ast.Starred) for argument in call.args):
        return Outcome(Level.MANUAL, "its arguments are not all known by name", _BY_NAME, holds=True)
    ddp = data_parallel_of(migration, view, call, site.group)
    if ddp.refusal is not None:
        return ddp.refusal
    share_definitions(migration, ddp.plan)
    try:
        patches = place(ddp.plan)
    except CannotPlace as error:
        return Outcome(
            Level.MANUAL,
            f"the wrap cannot be taken apart where it stands: {error}",
            "Give the wrap a statement of its own, model = DDP(model, …), and run again.",
            holds=True,
        )
    statement = view.statement(call)
    if isinstance(statement, ast.Assign) and any(isinstance(target, ast.Subscript) for target in statement.targets):
        ddp.level = Level.REVIEW
        ddp.notes.append("what reads the model from its container may not be followed: look for state dicts there")
    message = "; ".join(["fully_shard on the model takes the place of DDP", *ddp.notes])
    advice = " ".join(filter(None, [*ddp.advice, unit_advice(ddp)]))
    return Outcome(ddp.level, message, advice, patches=patches, needs=list(ddp.plan.needs))


_BEFORE = """\
import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(8, 8)

    def forward(self, x):
        return self.layer(x)


torch.cuda.set_device(local_rank)
model = Net().to(device)
model = DDP(model, device_ids=[local_rank])
optimizer = torch.optim.AdamW(model.parameters())
"""
_AFTER = """\
import torch
import torch.distributed as dist
import torch.nn as nn
from torch.distributed.fsdp import fully_shard


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(8, 8)

    def forward(self, x):
        return self.layer(x)


torch.cuda.set_device(local_rank)
model = Net().to(device)
for tensor in [*model.parameters(), *model.buffers()]:
    dist.broadcast(tensor.detach(), src=0)
fully_shard(model)
optimizer = torch.optim.AdamW(model.parameters())
"""
_TOLD_APART = """\
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.nn.parallel import DistributedDataParallel as DDP


def is_sharded(model):
    return isinstance(model, FSDP)


net = torch.nn.Linear(8, 8)
model = FSDP(net) if large else DDP(net)
with model.no_sync():
    model(x).sum().backward()
"""
_STILL_APART = '''\
import torch
from contextlib import contextmanager
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.nn.parallel import DistributedDataParallel as DDP


@contextmanager
def no_gradient_sync(model):
    """Gradients of backward passes inside stay on their rank; the first one outside reduces them all."""
    if not isinstance(model, FSDPModule):
        with model.no_sync():
            yield
        return
    model.set_requires_gradient_sync(False)
    try:
        yield
    finally:
        model.set_requires_gradient_sync(True)


def is_sharded(model):
    return isinstance(model, FSDPModule)


net = torch.nn.Linear(8, 8)
if large:
    fully_shard(net)
    model = net
else:
    model = DDP(net)
with no_gradient_sync(model):
    model(x).sum().backward()
'''
_HOOK = """\
fully_shard(model)


def broadcast_buffers(module, inputs):
    for buffer in module.buffers():
        dist.broadcast(buffer, src=0)


model.register_forward_pre_hook(broadcast_buffers)
"""

RULE = Rule(
    id="FS120",
    title="DistributedDataParallel becomes fully_shard",
    why=(
        "DDP hands rank 0's parameters and buffers to all ranks when it wraps, and rank 0's buffers before every "
        "forward; fully_shard does neither. With seeds per rank and no broadcast the model is made of rows from "
        "different initialisations (loss off by 1.6e-1, no error), and BatchNorm statistics drift apart. "
        "Where FSDP1 may wrap the same model and a function answers which of the two did, DDP stays: both would be "
        "FSDPModule, and what acts on the answer would do for one what was meant for the other. What serves models of "
        "either kind is written for both."
    ),
    symbols=(DDP,),
    roles=("call",),
    check=check,
    sources=(
        "torch/nn/parallel/distributed.py: DistributedDataParallel.__init__, _sync_buffers",
        "torch/distributed/fsdp/_fully_shard/_fully_shard.py: fully_shard",
    ),
    proof=("nanogpt_ddp", "gan_ddp", "imagenet_ddp", "model_without_ddp", "ddp_keywords", "ddp_told_apart"),
    examples=(
        Example(_BEFORE, _AFTER),
        Example(
            _BEFORE.replace("nn.Linear(8, 8)", "nn.BatchNorm1d(8)"),
            _AFTER.replace("nn.Linear(8, 8)", "nn.BatchNorm1d(8)").replace("fully_shard(model)\n", _HOOK),
            note="running statistics: a hook keeps them equal on all ranks, as DDP did",
        ),
        Example(_TOLD_APART, _STILL_APART, Level.MANUAL, "DDP stays where an answer tells its models from those of FSDP1"),
    ),
)
