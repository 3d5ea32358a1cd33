"""``module.check_is_root()``: whether a unit is the root, which FSDP2 has no public form of."""

from __future__ import annotations

import ast

from ..analysis.symbols import FSDP1
from ..findings import Level
from ..introspection.roots import define_is_root, model_of_loop
from ..migration import Migration
from ..rule import Example, Outcome, Rule
from ..sites import Site


def check(site: Site, migration: Migration) -> Outcome:
    view, call = site.view, site.call
    receiver = site.node.value if isinstance(site.node, ast.Attribute) else None
    model = model_of_loop(view, receiver) if isinstance(receiver, ast.Name) else None
    if call is None or model is None or call.args or call.keywords:
        return Outcome(
            Level.MANUAL,
            "FSDP2's modules have no check_is_root, and calling it raises; of which model this may be the root is not seen",
        )
    assert isinstance(receiver, ast.Name)
    outcome = Outcome(
        Level.REVIEW,
        "a function in this file tells whether a unit lies in no other one of the model; for a part of a bigger model, hand it "
        "that one",
    )
    name = define_is_root(migration, view, call, outcome)
    parts = (f"{name}(", view.keep(receiver), ", ", view.keep(model), ")")
    outcome.patches.append(view.replace(call, parts, "FSDP2 does not say which of its units are roots"))
    return outcome


_BEFORE = """\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


def clip(model, limit):
    for module in model.modules():
        if isinstance(module, FSDP) and module.check_is_root():
            module.clip_grad_norm_(limit)


def train(net, batches):
    model = FSDP(net)
    for batch in batches:
        model(batch).sum().backward()
        clip(model, 1.0)
"""
_AFTER = """\
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.nn.utils import clip_grad_norm_


def is_root(module, model):
    \"""Whether no other sharded module of the model holds this one.\"""
    return not any(
        isinstance(other, FSDPModule) and other is not module and module in other.modules()
        for other in model.modules()
    )


def clip(model, limit):
    for module in model.modules():
        if isinstance(module, FSDPModule) and is_root(module, model):
            clip_grad_norm_(module.parameters(), limit)


def train(net, batches):
    fully_shard(net)
    model = net
    for batch in batches:
        model(batch).sum().backward()
        clip(model, 1.0)
"""
_ALONE = """\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

model = FSDP(build())
assert model.check_is_root()
"""
_ALONE_AFTER = """\
from torch.distributed.fsdp import fully_shard

model = build()
fully_shard(model)
assert model.check_is_root()
"""

RULE = Rule(
    id="FS615",
    title="The roots among the units",
    why=(
        "FSDP1's modules answer check_is_root(). FSDP2 settles at the first forward which module is the root and keeps "
        "that to itself; a unit that lies in no other one is a root."
    ),
    advice="The module that fully_shard was called on last, around all other units, is the root: ask for that one.",
    symbols=(f"{FSDP1}.check_is_root",),
    roles=("use", "reference"),
    check=check,
    sources=("torch/distributed/fsdp/_fully_shard/_fsdp_state.py: FSDPState._lazy_init",),
    examples=(
        Example(_BEFORE, _AFTER, Level.REVIEW),
        Example(
            _ALONE,
            _ALONE_AFTER,
            Level.MANUAL,
        ),
    ),
)
