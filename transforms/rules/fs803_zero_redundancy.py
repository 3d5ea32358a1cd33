"""``ZeroRedundancyOptimizer``: on sharded parameters the plain optimizer is sharded already."""

from __future__ import annotations

import ast

from ..analysis.symbols import DDP
from ..findings import Level
from ..migration import Migration
from ..rule import Example, Outcome, Rule
from ..sites import Site
from ..text.generated import removed
from ..text.patches import Part, Patch

SYMBOL = "torch.distributed.optim.ZeroRedundancyOptimizer"
_OWN = ("optimizer_class", "process_group", "parameters_as_bucket_view", "overlap_with_ddp")
_WHY = "an optimizer over sharded parameters holds its rank's part of the state and no more"


def check(site: Site, migration: Migration) -> Outcome:
    if site.role == "keyword":
        return Outcome(Level.SAFE, "part of the call", silent=True)
    if site.member == "consolidate_state_dict":
        return _consolidate(site)
    call = site.call
    if site.role != "call" or call is None:
        return Outcome(
            Level.MANUAL,
            f"{site.member} is handed on as a value, or derived from",
            "Hand on the optimizer class itself: over sharded parameters its state is sharded.",
            holds=site.group is not None,
        )
    if site.group is None:
        return Outcome(
            Level.MANUAL,
            "nothing here wraps the model whose parameters these are",
            "Where the model is sharded by fully_shard, build the optimizer class itself over its parameters, behind that call.",
        )
    keywords = {keyword.arg: keyword for keyword in call.keywords}
    chosen = keywords.get("optimizer_class")
    overlap = keywords.get("overlap_with_ddp")
    if chosen is None or (overlap is not None and not _is_false(overlap.value)) or len(call.args) > 1:
        return Outcome(
            Level.MANUAL,
            "the optimizer inside cannot be read off the call, or it overlaps with DDP",
            "Build the optimizer class itself over model.parameters(), after fully_shard.",
            holds=True,
        )
    view = site.view
    parts: list[Part] = [view.keep(chosen.value), "("]
    kept = [*call.args, *(keyword for keyword in call.keywords if keyword.arg not in _OWN)]
    for number, argument in enumerate(kept):
        parts.extend((", ",) if number else ())
        parts.append(view.keep(argument))
    start, end = view.source.span(call)
    outcome = Outcome(
        Level.REVIEW,
        "the optimizer inside takes its place; its state dict is that of every optimizer, on all ranks",
        "Schedulers that look at optimizer.defaults (OneCycleLR with cycle_momentum) find momentum or betas there now.",
    )
    outcome.patches.append(Patch(view.path, start, end, (*parts, ")"), _WHY))
    return outcome


def _is_false(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and not node.value


def _consolidate(site: Site) -> Outcome:
    view = site.view
    statement = view.statement(site.node)
    if site.call is None or not isinstance(statement, ast.Expr) or statement.value is not site.call:
        return Outcome(
            Level.MANUAL,
            "consolidate_state_dict is used as a value",
            "Take it out: get_optimizer_state_dict gathers the state, on all ranks, where it is saved.",
            holds=True,
        )
    outcome = Outcome(Level.REVIEW, "consolidate_state_dict goes: the optimizer's state is gathered where it is saved")
    outcome.patches.append(removed(view, statement, _WHY))
    return outcome


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
    id="FS803",
    title="ZeroRedundancyOptimizer becomes the optimizer inside",
    why=(
        "It shards optimizer state over ranks that all hold the whole model. With FSDP2 parameters are sharded, and so "
        "is the state of any optimizer over them; consolidate_state_dict has nothing left to do."
    ),
    symbols=(SYMBOL, f"{SYMBOL}(*", f"{SYMBOL}.*", f"{DDP}.consolidate_state_dict"),
    roles=("call", "keyword", "use", "reference", "base", "annotation", "isinstance"),
    check=check,
    sources=("torch/distributed/optim/zero_redundancy_optimizer.py",),
    examples=(
        Example(
            _HEAD + "from torch.distributed.optim import ZeroRedundancyOptimizer\n"
            "from torch.nn.parallel import DistributedDataParallel as DDP\n" + _NET + "net = DDP(net)\n"
            "optimizer = ZeroRedundancyOptimizer(net.parameters(), optimizer_class=torch.optim.Adam, lr=0.1)\n",
            _HEAD + "from torch.distributed.fsdp import fully_shard\n" + _NET
            + "for tensor in [*net.parameters(), *net.buffers()]:\n    dist.broadcast(tensor.detach(), src=0)\n"
            "fully_shard(net)\noptimizer = torch.optim.Adam(net.parameters(), lr=0.1)\n",
            Level.REVIEW,
        ),
    ),
)  # fmt: skip
