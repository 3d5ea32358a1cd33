"""Loops over gradients behind a forward without backward: they miss those of units that are still gathered."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from ..analysis.values import Annotated, Value, Wrapped
from ..findings import Level
from ..groups import Group
from ..migration import Migration
from ..ranks.evaluation import reshard_lines
from ..rule import Example, Outcome, Rule
from ..sites import Site
from ..training.after_forward import follows_a_forward
from ..training.passes import outside_name
from ..view import FileView

_SYMBOL = "torch.nn.Module.parameters.grad"
_OF_GRADIENTS = frozenset(
    f"torch.nn.utils.{name}"
    for name in ("clip_grad_norm_", "clip_grad_value_", "clip_grad.clip_grad_norm_", "clip_grad.clip_grad_value_")
)


def find(migration: Migration) -> Iterator[Site]:
    """Places that ask a model for its parameters, to work on their gradients, behind a forward."""
    for view in migration.views():
        for node in ast.walk(view.tree):
            if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
                continue
            if node.func.attr not in ("parameters", "named_parameters") or not _for_gradients(view, node):
                continue
            values = tuple(view.values(node.func.value))
            group = migration.groups.of([v for v in values if _is_model(migration, v)])
            if group is not None and _is_behind_the_wrap(migration, view, node, group):
                if follows_a_forward(migration, view, node, group):
                    yield Site(view, node, _SYMBOL, "hazard", group, values, node)


def _is_model(migration: Migration, value: Value) -> bool:
    return isinstance(value, (Wrapped, Annotated)) or any(value in group.raw for group in migration.groups.all)


def _is_behind_the_wrap(migration: Migration, view: FileView, node: ast.AST, group: Group) -> bool:
    answers = {migration.order.relation((view, node), (wrap.view, wrap.node)) for wrap in group.wraps}
    return answers != {"before"}


def _for_gradients(view: FileView, call: ast.Call) -> bool:
    """Whether what is done with the parameters reads or clears their gradients."""
    for ancestor in view.ancestors(call):
        if isinstance(ancestor, ast.Call) and outside_name(view, ancestor.func) in _OF_GRADIENTS:
            return True
        if isinstance(ancestor, (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)):
            if _mentions_gradients(ancestor):
                return True
        if isinstance(ancestor, ast.stmt):
            inside = isinstance(ancestor, (ast.For, ast.AsyncFor)) and any(n is call for n in ast.walk(ancestor.iter))
            return inside and _mentions_gradients(ancestor)
    return False


def _mentions_gradients(node: ast.AST) -> bool:
    return any(isinstance(inner, ast.Attribute) and inner.attr == "grad" for inner in ast.walk(node))


def check(site: Site, migration: Migration) -> Outcome:
    view, call = site.view, site.node
    assert isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute)
    statement = view.statement(call)
    if not view.stands_alone(statement):
        return Outcome(
            Level.MANUAL,
            "behind a forward without backward the model shows whole parameters for some units, which have no gradients",
            "Call module.reshard() on every FSDPModule before.",
            holds=True,
        )
    outcome = Outcome(
        Level.REVIEW,
        "a forward may have run last, which leaves whole parameters without gradients behind: the units are resharded "
        "first",
    )
    model, indent = view.keep(call.func.value), view.indent(statement)
    lines = reshard_lines(migration, outcome, view, model, indent, call)
    if site.maybe_plain or (site.group is not None and migration.sharded_when(site) == "maybe"):
        outcome.message += "; on a plain model the loop finds no unit and does nothing"
    outcome.patches.append(view.insert_before(statement, lines, "gradients belong to the sharded parameters"))
    return outcome


_LOOP = (
    "optimizer.step()\nwith torch.no_grad():\n    score = model(batch)\n{0}for p in model.parameters():\n    p.grad = None\n"
)
_RESHARD = (
    "# a forward without a backward leaves whole parameters behind\nfor module in model.modules():\n"
    "    if isinstance(module, FSDPModule):\n        module.reshard()\n"
)

RULE = Rule(
    id="FS309",
    title="Gradients are looked for on the sharded parameters",
    why=(
        "After a forward without backward (an evaluation, a second forward for a metric) the root shows plain parameters, "
        "and the gradients hang on the sharded ones: a loop that clears, scales or measures gradients skips them. With "
        "gradients cleared by hand behind an evaluation, those of the step before were added to the next (norm 0.57 "
        "instead of 0.38), without an error."
    ),
    symbols=(_SYMBOL,),
    roles=("hazard",),
    check=check,
    find=find,
    sources=("gradients of a DDP and an FSDP2 run compared step by step on torch 2.13, two ranks",),
    examples=(
        Example(
            "import torch\nfrom torch.distributed.fsdp import FullyShardedDataParallel as FSDP\n\nmodel = FSDP(build())\n"
            + _LOOP.format(""),
            "import torch\nfrom torch.distributed.fsdp import FSDPModule, fully_shard\n\nmodel = build()\n"
            "fully_shard(model)\n" + _LOOP.format(_RESHARD),
            Level.REVIEW,
        ),
    ),
)
