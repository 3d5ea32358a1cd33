"""``ShardedGradScaler``: torch's own scaler does its work on DTensors."""

from __future__ import annotations

import ast

from ..findings import Level
from ..migration import Migration
from ..rule import Example, Outcome, Rule
from ..sites import Site
from ..text.patches import Patch
from ..training.half_precision import may_be_half
from ..training.scalers import OLD, same_annotation, without_choice

SCALER = "torch.amp.GradScaler"
_WHY = "torch.amp.GradScaler combines the inf checks of all shards"
_POSITIONAL = ("device", "init_scale", "backoff_factor", "growth_factor", "growth_interval", "enabled")


def check(site: Site, migration: Migration) -> Outcome:
    """The name changes; ``process_group`` has no counterpart, and two positions are swapped."""
    view, node = site.view, site.node
    if site.role == "keyword":
        return _keyword(site)
    if site.role == "base":
        return Outcome(
            Level.MANUAL,
            "a subclass of ShardedGradScaler",
            "Derive it from torch.amp.GradScaler; the inf checks of DTensor gradients are combined there.",
            holds=True,
        )
    outcome = Outcome(Level.SAFE, "ShardedGradScaler becomes torch.amp.GradScaler")
    if site.role in ("call", "reference") and may_be_half(migration):
        outcome.level = Level.REVIEW
        outcome.message += (
            '; parameters that are float16 themselves make it raise "Attempting to unscale FP16 gradients": keep them in '
            "float32 and have MixedPrecisionPolicy(param_dtype=torch.float16) cast them, or use a subclass whose "
            "_unscale_grads_ passes allow_fp16=True on"
        )
    name = migration.use(outcome, view, SCALER, node)
    if site.role != "call" or site.call is None:
        outcome.patches.append(view.replace(same_annotation(view, node) or node, name, _WHY))
        return outcome
    call = site.call
    choice = without_choice(view, call, name)
    if choice is not None:
        outcome.patches.append(choice)
        outcome.message += ", which the other way makes as well: the choice goes"
        return outcome
    outcome.patches.append(view.replace(call.func, name, _WHY))
    if any(isinstance(argument, ast.Starred) for argument in call.args) or len(call.args) > 6:
        return Outcome(
            Level.MANUAL,
            "its arguments are not all known by name",
            "Write the arguments out, each by its name, and run the tool again.",
            holds=True,
        )
    old_order = bool(call.args) and isinstance(call.args[0], ast.Constant) and not isinstance(call.args[0].value, str)
    names = _POSITIONAL[1:] if old_order else _POSITIONAL
    for position, argument in enumerate(call.args):
        if position or old_order:
            start = view.source.span(argument)[0]
            outcome.patches.append(Patch(view.path, start, start, (f"{names[position]}=",), _WHY))
    return outcome


def _keyword(site: Site) -> Outcome:
    view, keyword, call = site.view, site.keyword, site.call
    assert keyword is not None and call is not None
    if keyword.arg is None:
        return Outcome(Level.REVIEW, "the arguments are handed on as they come; process_group must not be among them")
    if keyword.arg != "process_group":
        return Outcome(Level.OK, f"{keyword.arg} means the same to torch.amp.GradScaler", silent=True)
    outcome = Outcome(Level.REVIEW, "process_group goes: the inf checks are combined over the mesh of the gradients")
    everything = [*call.args, *call.keywords]
    position = everything.index(keyword)
    start, end = view.source.span(keyword)
    if position:
        start = view.source.span(everything[position - 1])[1]
    elif len(everything) > 1:
        end = view.source.span(everything[1])[0]
    outcome.patches.append(Patch(view.path, start, end, (), _WHY))
    return outcome


RULE = Rule(
    id="FS305",
    title="ShardedGradScaler becomes torch.amp.GradScaler",
    why=(
        "An overflow in one shard has to make all ranks skip the step. torch.amp.GradScaler checks DTensor gradients "
        "over their mesh and halves the scale on all ranks, as ShardedGradScaler did. Gradients in float16, of parameters "
        "in float16, it refuses, which ShardedGradScaler did not. With parameters on the CPU the "
        "process group needs a CPU backend as well (FS212)."
    ),
    symbols=(OLD, OLD + "(*", "torch.distributed.fsdp.sharded_grad_scaler"),
    roles=("call", "keyword", "reference", "annotation", "isinstance", "base"),
    check=check,
    sources=("torch/distributed/fsdp/sharded_grad_scaler.py", "torch/amp/grad_scaler.py"),
    proof=("grad_scaler",),
    examples=(
        Example(
            "import torch\nfrom torch.distributed.fsdp.sharded_grad_scaler import ShardedGradScaler\n\n"
            "scaler = ShardedGradScaler(init_scale=1024.0, process_group=group)\n",
            "import torch\n\nscaler = torch.amp.GradScaler(init_scale=1024.0)\n",
            Level.REVIEW,
        ),
        Example(
            """\
from typing import Union

from torch.cuda.amp import GradScaler
from torch.distributed.fsdp.sharded_grad_scaler import ShardedGradScaler


def scaler_of(sharded: bool) -> Union[GradScaler, ShardedGradScaler]:
    return ShardedGradScaler(init_scale=8.0) if sharded else GradScaler(init_scale=8.0)
""",
            """\
import torch


def scaler_of(sharded: bool) -> torch.amp.GradScaler:
    return torch.amp.GradScaler(init_scale=8.0)
""",
            note="torch.cuda.amp.GradScaler is torch.amp.GradScaler by its older name.",
        ),
    ),
)
