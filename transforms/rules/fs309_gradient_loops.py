"""Work on parameters or gradients behind a forward without backward: it misses the units that are still gathered."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from ..analysis.values import Annotated, Derived, Value, Wrapped
from ..findings import Level
from ..groups import Group
from ..migration import Migration
from ..ranks.evaluation import reshard_lines
from ..rule import Example, Outcome, Rule
from ..sites import Site
from ..state.summoned_blocks import is_whole_in_block
from ..training.after_forward import follows_a_forward
from ..training.local_reads import tensor_values
from ..training.parameter_work import loop_over, of_gradients, works_on_tensors, written_tensor
from ..view import FileView

_SYMBOL = "torch.nn.Module.parameters.grad"


def find(migration: Migration) -> Iterator[Site]:
    """Places behind a forward that ask a model for parameters or layers, to work on gradients or write into weights."""
    done: set[ast.AST] = set()
    for view in migration.views():
        for node in view.nodes(ast.Call):
            model = _asked(node)
            if model is None:
                continue
            work = _work_on(migration, view, node)
            done.update(inner for part in work for inner in ast.walk(part))
            site = _site(migration, view, node, model) if work else None
            if site is not None:
                yield site
    for view in migration.views():
        for node in view.nodes(ast.Call):
            model = _frozen(view, node)
            site = _site(migration, view, node, model) if model is not None else None
            if site is not None:
                done.add(node)
                yield site
    for view in migration.views():
        for node in view.nodes(ast.Call, ast.Assign, ast.AugAssign):
            tensor = written_tensor(node)
            if tensor is None or node in done or not _is_parameter(migration, view, tensor):
                continue
            site = _site(migration, view, node, _model_in(view, tensor) or tensor)
            if site is not None:
                yield site


def _asked(call: ast.Call) -> ast.expr | None:
    """The model that a call asks for its parameters."""
    asks = isinstance(call.func, ast.Attribute) and call.func.attr in ("parameters", "named_parameters")
    return call.func.value if asks and isinstance(call.func, ast.Attribute) else None


def _frozen(view: FileView, call: ast.Call) -> ast.expr | None:
    """The wrapped model that is frozen or thawed, or one whose part is: ``model.module.body.requires_grad_(False)``."""
    if not isinstance(call.func, ast.Attribute) or call.func.attr != "requires_grad_":
        return None
    return _model_in(view, call.func)


def _site(migration: Migration, view: FileView, node: ast.AST, model: ast.expr) -> Site | None:
    """The site of a place where ``model`` is asked, if it lies behind the wrap and behind a forward."""
    values = tuple(view.values(model))
    group = migration.groups.of([v for v in values if _is_model(migration, v)]) or migration.groups.of_tensors(values)
    if group is None or not _is_behind_the_wrap(migration, view, node, group):
        return None
    if not follows_a_forward(migration, view, node, group, values):
        return None
    return Site(view, node, _SYMBOL, "hazard", group, values)


def _is_parameter(migration: Migration, view: FileView, node: ast.expr) -> bool:
    _, values = tensor_values(migration, view, node)
    return any(isinstance(value, Derived) and value.kind == "parameters" for value in values)


def _model_in(view: FileView, node: ast.expr) -> ast.expr | None:
    """The model that a tensor is read off by name: ``model`` in ``model.module.head.weight``."""
    current = node
    while isinstance(current, (ast.Call, ast.Attribute, ast.Subscript)):
        current = current.func if isinstance(current, ast.Call) else current.value
        if any(isinstance(value, (Wrapped, Annotated)) for value in view.values(current)):
            return current
    return None


def _is_model(migration: Migration, value: Value) -> bool:
    return isinstance(value, (Wrapped, Annotated)) or any(value in group.raw for group in migration.groups.all)


def _is_behind_the_wrap(migration: Migration, view: FileView, node: ast.AST, group: Group) -> bool:
    if is_whole_in_block(migration, view, node, group):
        return False
    answers = {migration.order.relation((view, node), (wrap.view, wrap.node)) for wrap in group.wraps}
    return answers != {"before"}


def _work_on(migration: Migration, view: FileView, call: ast.Call) -> list[ast.AST]:
    """The code that writes into the parameters that a call gives, or reads or clears their gradients."""
    for ancestor in view.ancestors(call):
        if isinstance(ancestor, ast.Call) and of_gradients(view, ancestor):
            return [ancestor]
        if isinstance(ancestor, ast.Call) and any(call is argument for argument in ancestor.args):
            bodies = (migration.program.function_node(f)[1] for f in migration.program.callees(view, ancestor))
            working = [body for body in bodies if works_on_tensors(body)]
            if working:
                return working
        if isinstance(ancestor, (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)):
            if works_on_tensors(ancestor):
                return [ancestor]
        if isinstance(ancestor, ast.stmt):
            loop = loop_over(view, call)
            return [loop] if loop is not None and works_on_tensors(loop) else []
    return []


def check(site: Site, migration: Migration) -> Outcome:
    view, node = site.view, site.node
    tensor = written_tensor(node)
    model = (_asked(node) or _frozen(view, node)) if isinstance(node, ast.Call) else None
    if model is None and tensor is not None:
        model = _model_in(view, tensor)
    statement = view.statement(node)
    if model is None or not view.stands_alone(statement):
        return Outcome(
            Level.MANUAL,
            "behind a forward without backward the model shows whole parameters for some units: they have no gradients, "
            "and what is written into them, or past them into the shards, is lost or not seen",
            "Call module.reshard() on every FSDPModule before.",
            holds=True,
        )
    outcome = Outcome(
        Level.REVIEW,
        "a forward may have run last, which leaves whole parameters behind, without gradients and apart from the shards: "
        "the units are resharded first",
    )
    lines = reshard_lines(migration, outcome, view, view.keep(model), view.indent(statement), node)
    if site.group is not None and "FSDP1" in site.group.kinds:
        outcome.message += "; FSDP1's root ran on with what it had gathered before, whatever was written since"
    if site.maybe_plain or (site.group is not None and migration.sharded_when(site) == "maybe"):
        outcome.message += "; on a plain model the loop finds no unit and does nothing"
    outcome.patches.append(view.insert_before(statement, lines, "work goes to the sharded parameters"))
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
