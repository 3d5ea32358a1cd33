"""Optimizers built after a forward of the sharded model: it may still show whole parameters."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from ..analysis.values import Optimizer
from ..findings import Level
from ..groups import Group
from ..migration import Migration
from ..rule import Example, Outcome, Rule
from ..sites import Site
from ..text.patches import Patch
from ..training.after_forward import follows_a_forward
from ..training.conditions import FSDP_MODULE
from ..training.in_scope import model_at
from ..training.passes import BACKWARD, FORWARD, passes_in
from ..view import FileView

SYMBOL = "torch.optim.Optimizer.forward"


def find(migration: Migration) -> Iterator[Site]:
    """Optimizers with a forward between the wrap and their construction, or with one last in the round before."""
    for group in migration.groups.all:
        for optimizer in group.optimizers:
            view, call = migration.program.call_node(optimizer.site)
            if _is_built_again(migration, view, call, group, optimizer):
                yield Site(view, call, SYMBOL, "hazard", group, (optimizer,), call)
                continue
            block, place = view.block_of(view.statement(call))
            for wrap in group.wraps:
                inside = [i for i, s in enumerate(block[:place]) if wrap.view is view and _holds(s, wrap.node)]
                between = block[inside[0] + 1 : place] if inside else []
                passes = passes_in(migration, view, between, group)
                if FORWARD in passes and BACKWARD not in passes:
                    yield Site(view, call, SYMBOL, "hazard", group, (optimizer,), call)
                    break


def _is_built_again(migration: Migration, view: FileView, call: ast.Call, group: Group, optimizer: Optimizer) -> bool:
    """Whether an optimizer is built in a loop whose last pass is a forward, of a model that is wrapped before the loop."""
    loops = [node for node in view.ancestors(call) if isinstance(node, (ast.For, ast.While))]
    if not loops or any(wrap.view is view and _holds(loop, wrap.node) for wrap in group.wraps for loop in loops):
        return False
    relations = {migration.order.relation((view, call), (wrap.view, wrap.node)) for wrap in group.wraps}
    return "after" in relations and follows_a_forward(migration, view, call, group, (optimizer,))


def _asks_for_parameters(call: ast.Call) -> bool:
    """Whether the parameters are asked for in the call itself, and not before it."""
    return any(
        isinstance(node, ast.Attribute) and node.attr in ("parameters", "named_parameters") for node in ast.walk(call)
    )


def _holds(statement: ast.stmt, node: ast.AST) -> bool:
    return any(inner is node for inner in ast.walk(statement))


def check(site: Site, migration: Migration) -> Outcome:
    view, group, call = site.view, site.group, site.call
    assert group is not None and call is not None
    (optimizer,) = (value for value in site.values if isinstance(value, Optimizer))
    model = model_at(migration.groups, view, call, group)
    statement = view.statement(call)
    in_place = _asks_for_parameters(call) or not _is_built_again(migration, view, call, group, optimizer)
    if model is None or not in_place or not view.stands_alone(statement):
        return Outcome(
            Level.MANUAL,
            "the optimizer is built after a forward, when the model may still show whole parameters",
            "Reshard every FSDPModule of the model before.",
            holds=True,
        )
    outcome = Outcome(
        Level.REVIEW, "a forward ran before: the units are resharded, so that the optimizer gets the sharded parameters"
    )
    module = migration.use(outcome, view, FSDP_MODULE, call)
    unit, indent = view.free_name(call, "module"), view.indent(statement)
    text = (
        f"for {unit} in {model}.modules():\n{indent}    if isinstance({unit}, {module}):\n{indent}        "
        f"{unit}.reshard()\n{indent}"
    )
    start = view.source.span(statement)[0]
    outcome.patches.append(Patch(view.path, start, start, (text,), "an optimizer takes the sharded parameters"))
    return outcome


_BODY = "sizes = model(example).shape\noptimizer = torch.optim.SGD(model.parameters(), lr=0.1)\n"

RULE = Rule(
    id="FS503",
    title="The optimizer is built on sharded, not on gathered parameters",
    why=(
        "After a forward without backward (a sanity pass, a count of operations) the root still shows whole "
        "parameters. An optimizer built then holds those, and part of the model is never trained, without an error."
    ),
    symbols=(SYMBOL,),
    roles=("hazard",),
    check=check,
    find=find,
    sources=("https://github.com/pytorch/pytorch/issues/149205",),
    examples=(
        Example(
            "import torch\nfrom torch.distributed.fsdp import FullyShardedDataParallel as FSDP\n\n"
            "model = FSDP(build())\n" + _BODY,
            "import torch\nfrom torch.distributed.fsdp import FSDPModule, fully_shard\n\n"
            "model = build()\nfully_shard(model)\nsizes = model(example).shape\n"
            "for module in model.modules():\n    if isinstance(module, FSDPModule):\n        module.reshard()\n"
            "optimizer = torch.optim.SGD(model.parameters(), lr=0.1)\n",
            Level.REVIEW,
        ),
    ),
)
