"""More than one backward through one forward: second derivatives, retained graphs, replaced parameters."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from ..findings import Level
from ..groups import Group
from ..migration import Migration
from ..rule import Example, Outcome, Rule
from ..sites import Site
from ..training.local_reads import runs_behind_the_wrap
from ..training.passes import FORWARD, called_name, outside_name, passes_in
from ..view import FileView

_SYMBOL = "torch.autograd.second"
_FUNCTIONAL = frozenset({"torch.func.functional_call", "torch.nn.utils.stateless.functional_call"})

_DEEPEST = 4


def find(migration: Migration) -> Iterator[Site]:
    """Such calls where a model of a group runs."""
    for view in migration.views():
        for node in view.nodes(ast.Call):
            kind = _kind(view, node)
            group = _group_run_by(migration, view, node, kind) if kind else None
            if group is not None and (kind != "retain_graph" or "DDP" in group.kinds):
                yield Site(view, node, f"{_SYMBOL}.{kind}", "hazard", group, (), node)


def _kind(view: FileView, call: ast.Call) -> str:
    name = outside_name(view, call.func)
    if name in _FUNCTIONAL:
        return "functional_call"
    if name != "torch.autograd.grad" and called_name(call) != "backward":
        return ""
    true = {k.arg for k in call.keywords if isinstance(k.value, ast.Constant) and k.value.value is True}
    if "create_graph" in true:
        return "create_graph"
    return "retain_graph" if "retain_graph" in true and called_name(call) == "backward" else ""


def _group_run_by(migration: Migration, view: FileView, call: ast.Call, kind: str) -> Group | None:
    """The group whose model the code around a call, or around the calls of its function, runs forward (or is given)."""
    if kind == "functional_call":
        group = migration.groups.of(view.values(call.args[0])) if call.args else None
        return group if group is not None and runs_behind_the_wrap(migration, view, call, group) else None
    places: list[tuple[FileView, ast.AST]] = [(view, call)]
    seen: set[ast.AST] = set()
    for place, node in places:
        function = place.function(node)
        if (function or place.tree) in seen:
            continue
        seen.add(function or place.tree)
        body = getattr(function or place.tree, "body", [])
        statements = body if isinstance(body, list) else [body]
        group = next((g for g in migration.groups.all if FORWARD in passes_in(migration, place, statements, g)), None)
        if group is not None:
            return group
        if function is not None and len(seen) <= _DEEPEST:
            places.extend(migration.program.callers(place, function))
    return None


def check(site: Site, migration: Migration) -> Outcome:
    if site.member == "retain_graph":
        return Outcome(
            Level.REVIEW,
            "if another backward through the same forward follows, DDP left its gradients unreduced on each rank; FSDP2 "
            "reduces those of every backward",
            "Where the two losses are of one model, add them and call backward once: then both sides are equal.",
        )
    if site.member == "create_graph":
        return Outcome(
            Level.MANUAL,
            "second derivatives need the parameters again after the first backward, when a sharded model has freed them: "
            "the second backward raises",
            "Keep DDP for this model (--ddp keep), or take the penalty of a form without second derivatives.",
            holds=True,
        )
    return Outcome(
        Level.MANUAL,
        "functional_call runs the model with other tensors as its parameters: under DDP no gradient was reduced there, "
        "under FSDP2 its hooks gather and reduce the model's own",
        "Keep DDP for this model (--ddp keep), or run the model itself.",
        holds=True,
    )


_HEAD = (
    "import torch\nfrom torch.nn.parallel import DistributedDataParallel as DDP\n\n"
    "model = DDP(build(), broadcast_buffers=False)\n"
)
_PENALTY = _HEAD + (
    "score = model(batch)\n(slope,) = torch.autograd.grad(score.sum(), batch, create_graph=True)\n"
    "(score.mean() + slope.pow(2).mean()).backward()\n"
)
_TWICE = "output = model(batch)\nfirst(output).backward(retain_graph=True)\nsecond(output).backward()\n"

RULE = Rule(
    id="FS310",
    title="More than one backward through a forward",
    why=(
        "The units of a sharded model free their parameters after a backward, and reduce gradients in each. A gradient "
        "penalty with create_graph=True raises in its second backward. Two backward passes through one forward train "
        "otherwise: DDP reduced gradients in the first only and left each rank its own of the second."
    ),
    symbols=(f"{_SYMBOL}.*",),
    roles=("hazard",),
    check=check,
    find=find,
    sources=("gradient penalty, two backward passes and functional_call run under DDP and FSDP2 on torch 2.13, two ranks",),
    examples=(
        Example(_PENALTY, _PENALTY, Level.MANUAL),
        Example(
            _HEAD + _TWICE,
            "import torch\nimport torch.distributed as dist\nfrom torch.distributed.fsdp import fully_shard\n\n"
            "model = build()\nfor tensor in [*model.parameters(), *model.buffers()]:\n"
            "    dist.broadcast(tensor.detach(), src=0)\nfully_shard(model)\n" + _TWICE,
            Level.REVIEW,
        ),
    ),
)
