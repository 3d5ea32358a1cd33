"""``model.clip_grad_norm_``: FSDP1's own clipping becomes the one of torch.nn.utils."""

from __future__ import annotations

import ast

from ..findings import Level
from ..migration import Migration
from ..ranks.evaluation import reshard_lines
from ..rule import Example, Outcome, Rule
from ..sites import Site
from ..text.patches import Old, Part
from ..training.after_forward import runs_behind_another_forward
from ..training.clipping import CLIP, is_used
from ..training.conditions import is_known

_WHY = "FSDP2 has no clip_grad_norm_ of its own"


def check(site: Site, migration: Migration) -> Outcome:
    """Only wrapped models have the method, so no plain model reaches the call."""
    view, call = site.view, site.call
    if call is None and isinstance(getattr(site.node, "ctx", None), ast.Store):
        return Outcome(Level.OK, "a method of the repository's own takes this name")
    if call is None:
        return Outcome(
            Level.MANUAL,
            "clip_grad_norm_ is not called here but handed on",
            "Pass a function that calls torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm).full_tensor().",
            holds=True,
        )
    if not is_known(site, migration):
        return Outcome(
            Level.MANUAL,
            "nothing in this code wraps the model",
            "If sharded models come here, call torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm).full_tensor().",
        )
    arguments = list(call.args)
    if site.role == "use":
        assert isinstance(call.func, ast.Attribute)
        receiver = call.func.value
    elif arguments:
        receiver = arguments.pop(0)  # FullyShardedDataParallel.clip_grad_norm_(model, …)
    else:
        return Outcome(
            Level.MANUAL,
            "the call does not say whose gradients it clips",
            "Call torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm), and .full_tensor() on its result.",
            holds=True,
        )
    outcome = Outcome(Level.SAFE, "the gradients are clipped by torch.nn.utils.clip_grad_norm_")
    clip = migration.use(outcome, view, CLIP, call)
    rest = [*arguments, *call.keywords]
    parts: list[Part] = [f"{clip}(", view.keep(receiver), ".parameters()"]
    if rest:
        start, end = view.source.span(rest[0])[0], view.source.span(call)[1] - 1
        parts.extend((", ", Old(start, end)))
    parts.append(")")
    if is_used(view, call):
        parts.append(".full_tensor()")
        outcome.message += ", and its norm, a DTensor, is gathered"
    outcome.patches.append(view.replace(call, parts, _WHY))
    if site.group is not None and runs_behind_another_forward(migration, view, call, site.group, site.values):
        return _behind_a_forward(site, migration, outcome, receiver)
    return outcome


def _behind_a_forward(site: Site, migration: Migration, outcome: Outcome, receiver: ast.expr) -> Outcome:
    """A forward since the backward leaves whole parameters behind, and these have no gradients."""
    view, node = site.view, site.node
    statement = view.statement(node)
    if not view.stands_alone(statement):
        return Outcome(
            Level.MANUAL,
            "a forward ran since the backward: the units that it leaves gathered show parameters without gradients",
            "Call reshard() on every FSDPModule of the model before its gradients are clipped.",
            holds=True,
        )
    outcome.level = Level.REVIEW
    outcome.message += (
        "; a forward ran since the backward, which leaves whole parameters without gradients behind: the units are resharded "
        "first, and the next forward sees the step, where FSDP1's root ran on with what it had gathered"
    )
    lines = reshard_lines(migration, outcome, view, view.keep(receiver), view.indent(statement), node)
    outcome.patches.append(view.insert_before(statement, lines, "gradients belong to the sharded parameters"))
    return outcome


_WRAP = "import torch\nfrom torch.distributed.fsdp import FullyShardedDataParallel as FSDP\n\nmodel = FSDP(build())\n"
_SHARD = "import torch\nfrom torch.distributed.fsdp import fully_shard\n\nmodel = build()\nfully_shard(model)\n"

RULE = Rule(
    id="FS303",
    title="model.clip_grad_norm_ becomes torch.nn.utils.clip_grad_norm_",
    why=(
        "FSDP2 clips with torch.nn.utils, which computes the norm over all shards (within 1.2e-7 of FSDP1's) and "
        "returns a DTensor: formatting it raises, and for norm_type=inf .item() gives each rank its own value, so the "
        "norm is gathered with full_tensor() before it is used."
    ),
    symbols=("torch.distributed.fsdp.FullyShardedDataParallel.clip_grad_norm_",),
    roles=("use", "call", "reference"),
    check=check,
    proof=("trainer_class", "trainer_files", "finetuning_package"),
    examples=(
        Example(
            _WRAP + "if config.shard:\n    model.clip_grad_norm_(1.0)\nelse:\n"
            "    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)\n",
            _SHARD + "torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)\n",
        ),
        Example(
            _WRAP + 'if hasattr(model, "clip_grad_norm_"):\n    model.clip_grad_norm_(1.0)\nelse:\n'
            "    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)\n",
            _SHARD + "torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)\n",
        ),
        Example(
            _WRAP + "model.clip_grad_norm_(1.0)\n",
            _SHARD + "torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)\n",
        ),
        Example(
            _WRAP + 'print(f"{model.clip_grad_norm_(max_norm=1.0).item():.3f}")\n',
            _SHARD
            + 'print(f"{torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm=1.0).full_tensor().item():.3f}")\n',
        ),
    ),
)
