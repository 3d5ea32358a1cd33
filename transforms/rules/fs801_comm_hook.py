"""Communication hooks: compression becomes ``reduce_dtype``, the default hook goes, the others need a person."""

from __future__ import annotations

import ast

from ..analysis.symbols import DDP, FSDP1
from ..findings import Level
from ..migration import Migration
from ..rule import Example, Outcome, Rule
from ..sites import Site
from ..text.generated import removed
from ..training.comm_hooks import PACKAGES, REGISTRATIONS, compression, hook_of, is_compression
from ..training.passes import called_name

_WHY = "FSDP2 takes what compression hooks do as reduce_dtype"
_DEFAULT = ("default_hooks.allreduce_hook", "default_hooks.reduce_scatter_hook", "BuiltinCommHookType.ALLREDUCE")


def check(site: Site, migration: Migration) -> Outcome:
    if site.role != "use":
        return _part(site)
    hook = hook_of(site)
    view, call = site.view, site.call
    statement = view.statement(site.node)
    if hook is None or call is None or not isinstance(statement, ast.Expr):
        return _manual("a communication hook of your own")
    name = hook.rpartition(".")[2]
    if hook.endswith(_DEFAULT):
        outcome = Outcome(Level.SAFE, f"{name} goes: it averages gradients as FSDP2 does")
    elif compression(migration, site) is not None:
        outcome = Outcome(
            Level.REVIEW,
            f"{name} becomes reduce_dtype of the fully_shard call; micro-batches that are not reduced add up in that "
            "type, too",
            "Without accumulation the numbers are the same. With it they differ by 7e-6 in fp16 losses.",
        )
    elif is_compression(hook):
        return Outcome(
            Level.MANUAL,
            f"{name} is registered on some ways only, or for models that not only DDP wraps, so reduce_dtype is not set for it",
            "Give the calls of fully_shard a MixedPrecisionPolicy(reduce_dtype=…) under the condition that the hook is "
            "registered under, and take the registration out.",
            holds=True,
        )
    else:
        return _manual(f"{name} has no counterpart in FSDP2")
    outcome.patches.append(removed(view, statement, _WHY))
    return outcome


def _part(site: Site) -> Outcome:
    """A hook named inside its registration is part of that; a hook or its state elsewhere is not migrated."""
    for ancestor in site.view.ancestors(site.node):
        if isinstance(ancestor, ast.Call) and called_name(ancestor) in REGISTRATIONS:
            return Outcome(Level.SAFE, "part of the registration of a hook", silent=True)
    if site.role == "keyword":
        return Outcome(Level.MANUAL, "an argument of a communication hook's state", silent=True)
    return Outcome(
        Level.MANUAL,
        f"{site.member} belongs to communication hooks, which FSDP2 does not have",
        "reduce_dtype of MixedPrecisionPolicy compresses; set_all_reduce_hook and set_custom_reduce_scatter of "
        "FSDPModule take functions of your own.",
    )


def _manual(what: str) -> Outcome:
    return Outcome(
        Level.MANUAL,
        f"{what}: gradients would be reduced without it",
        "Use MixedPrecisionPolicy(reduce_dtype=…) for compression, model.set_all_reduce_hook (torch 2.7) or "
        "model.set_custom_reduce_scatter (torch 2.9) for anything else.",
        holds=True,
    )


_HOOKS = "from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import {hook}\n"
_HEAD = """\
import torch
import torch.distributed as dist
import torch.nn as nn
"""
_NET = """
torch.cuda.set_device(local_rank)
net = nn.Linear(8, 8)
"""

RULE = Rule(
    id="FS801",
    title="Communication hooks",
    why=(
        "A hook replaces DDP's all-reduce. fp16_compress_hook is exactly reduce_dtype=torch.float16 (no difference in "
        "losses and weights without accumulation); PowerSGD and the like have no counterpart."
    ),
    symbols=(
        f"{DDP}.register_comm_hook", f"{DDP}._register_builtin_comm_hook", f"{FSDP1}.register_comm_hook",
        f"{DDP}._register_fused_optim", *(f"{package}*" for package in PACKAGES),
    ),
    roles=("use", "call", "keyword", "reference", "isinstance", "annotation", "base"),
    check=check,
    sources=("torch/distributed/algorithms/ddp_comm_hooks/default_hooks.py",),
    examples=(
        Example(
            _HEAD + _HOOKS.format(hook="fp16_compress_hook")
            + "from torch.nn.parallel import DistributedDataParallel as DDP\n" + _NET
            + "net = DDP(net)\nnet.register_comm_hook(None, fp16_compress_hook)\nstep(net)\n",
            _HEAD + "from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard\n" + _NET
            + "for tensor in [*net.parameters(), *net.buffers()]:\n    dist.broadcast(tensor.detach(), src=0)\n"
            "fully_shard(net, mp_policy=MixedPrecisionPolicy(reduce_dtype=torch.float16))\nstep(net)\n",
            Level.REVIEW,
        ),
    ),
)  # fmt: skip
