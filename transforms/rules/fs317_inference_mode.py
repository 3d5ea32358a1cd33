"""Evaluations under ``torch.inference_mode()`` that may come before the first training step."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from itertools import takewhile

from ..findings import Level
from ..groups import Group
from ..migration import Migration
from ..order import Place
from ..ranks.evaluation import runs_of
from ..rule import Example, Outcome, Rule
from ..sites import Site
from ..text.patches import Part
from ..training.forward_methods import method_calls
from ..training.passes import BACKWARD_NAMES, FORWARD, called_name, calls_in, outside_name, passes_in
from ..view import FileView

_INFERENCE = "torch.inference_mode"
_APART = "torch.inference_mode(apart)"
_UNSURE = (ast.If, ast.IfExp, ast.Try, ast.ExceptHandler, ast.While)
_WHY = "what the first forward gathers has to serve training as well"


def find(migration: Migration) -> Iterator[Site]:
    """Each ``inference_mode`` around a forward of a model that DDP wraps, and each whose block is not seen.

    FSDP1 raised in the same place, so its programs train first.
    """
    trained = _trained(migration)
    if not trained:
        return
    for view in migration.views():
        around = dict(_around(view))
        for node, body in around.items():
            group = next((group for group in trained if _runs(migration, view, body, group)), None)
            if group is not None and not _is_false(node) and not _trains_first(migration, (view, node)):
                yield Site(view, node, _INFERENCE, "hazard", group)
        named = {inner for node in around for inner in ast.walk(node)}
        for node in view.nodes(ast.Name, ast.Attribute):
            if node not in named and isinstance(node.ctx, ast.Load) and outside_name(view, node) == _INFERENCE:
                yield Site(view, node, _APART, "hazard", trained[0])


def _runs(migration: Migration, view: FileView, body: list[ast.stmt], group: Group) -> bool:
    """Whether statements run a group's model: forward, or another method that gathers its parameters."""
    if FORWARD in passes_in(migration, view, body, group):
        return True
    calls = list(calls_in(body))
    methods = {found.call for found in method_calls(migration) if found.group is group}
    return any(call in methods or view.call_site(call) in runs_of(migration, group) for call in calls)


def _trained(migration: Migration) -> list[Group]:
    """The groups that leave DDP, where anything is trained at all."""
    groups = [group for group in migration.groups.all if "DDP" in group.kinds and not group.stays_ddp]
    return groups if groups and _backwards(migration) else []


def _backwards(migration: Migration) -> list[Place]:
    """The backward passes of the program."""

    def found() -> list[Place]:
        return [
            (view, call)
            for view in migration.views()
            for call in view.nodes(ast.Call)
            if called_name(call) in BACKWARD_NAMES
        ]

    return migration.once("backward passes", None, found)


def _around(view: FileView) -> Iterator[tuple[ast.expr, list[ast.stmt]]]:
    """The ``inference_mode`` of blocks and decorators, with what runs under it."""
    for node in view.nodes(ast.With, ast.AsyncWith, ast.FunctionDef, ast.AsyncFunctionDef):
        is_block = isinstance(node, (ast.With, ast.AsyncWith))
        for context in [item.context_expr for item in node.items] if is_block else node.decorator_list:
            called = context.func if isinstance(context, ast.Call) else context
            if outside_name(view, called) == _INFERENCE:
                yield context, node.body


def _is_false(node: ast.expr) -> bool:
    mode = _mode(node)
    return isinstance(mode, ast.Constant) and mode.value is False


def _mode(node: ast.expr) -> ast.expr | None:
    """What ``inference_mode`` is told; None where it is on."""
    if not isinstance(node, ast.Call):
        return None
    given = [*node.args, *(keyword.value for keyword in node.keywords)]
    return given[0] if given and not (isinstance(given[0], ast.Constant) and given[0].value is True) else None


def _trains_first(migration: Migration, place: Place) -> bool:
    """Whether no backward pass follows a place unless one surely ran before it."""
    order = migration.order
    meetings = [meeting for backward in _backwards(migration) for meeting in order.meetings(backward, place)]
    return bool(meetings) and all(
        _is_behind(view, training, evaluation) or _ends_with(migration, view, training, evaluation)
        for view, training, evaluation in meetings
    )


def _is_behind(view: FileView, training: ast.AST, evaluation: ast.AST) -> bool:
    """Whether training surely ran where the function that holds both reaches the evaluation."""
    around = [evaluation, *view.ancestors(evaluation)]
    between = list(takewhile(lambda node: node not in around, view.ancestors(training)))
    return view.line(training) < view.line(evaluation) and not any(isinstance(node, _UNSURE) for node in between)


def _ends_with(migration: Migration, view: FileView, training: ast.AST, evaluation: ast.AST) -> bool:
    """Whether the evaluation stands in a branch that leaves a function which runs once."""
    branch = next((node for node in view.ancestors(evaluation) if isinstance(node, ast.If)), None)
    function = view.function(evaluation)
    return (
        branch is not None
        and function is not None
        and isinstance(branch.body[-1], ast.Return)
        and any(evaluation in ast.walk(statement) for statement in branch.body)
        and not any(node is training for node in ast.walk(branch))
        and _runs_once(migration, view, function)
    )


def _runs_once(migration: Migration, view: FileView, function: ast.AST) -> bool:
    """Whether a function has one caller, which has one itself and so on, none of them in a loop."""
    seen: set[ast.AST] = set()
    while function not in seen:
        seen.add(function)
        callers = migration.program.callers(view, function)
        if len(callers) != 1:
            return False
        view, call = callers[0]
        if any(isinstance(node, (ast.For, ast.AsyncFor, ast.While)) for node in view.ancestors(call)):
            return False
        around = view.function(call)
        if around is None:
            return True
        function = around
    return False


def check(site: Site, migration: Migration) -> Outcome:
    view, node = site.view, site.node
    assert isinstance(node, ast.expr)
    if site.symbol == _APART:
        return Outcome(
            Level.REVIEW,
            "what runs under this inference_mode is not seen: if it is a sharded model's first forward, training after it "
            "raises, or leaves gradients None without an error",
            "Take torch.no_grad there, or train before the first evaluation.",
        )
    outcome = Outcome(
        Level.REVIEW,
        "the evaluation may be the first forward of the sharded model, and what is gathered under inference_mode cannot be "
        "trained: training after it raises, or leaves gradients None without an error; no_grad computes the same",
    )
    mode = _mode(node)
    if mode is None:
        plain = migration.use(outcome, view, "torch.no_grad", node)
        text: list[Part] = [plain, "()" if isinstance(node, ast.Call) else ""]
    else:
        switch = migration.use(outcome, view, "torch.set_grad_enabled", node)
        is_simple = isinstance(mode, (ast.Name, ast.Attribute, ast.Call, ast.Subscript))
        text = [f"{switch}(not ", view.keep(mode), ")"] if is_simple else [f"{switch}(not (", view.keep(mode), "))"]
    outcome.patches.append(view.replace(node, text, _WHY))
    return outcome


_BEFORE = """\
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP

torch.cuda.set_device(local_rank)
model = torch.nn.Linear(8, 8).to(device)
model = DDP(model, device_ids=[local_rank])
optimizer = torch.optim.AdamW(model.parameters())
for batch in batches:
    with torch.inference_mode():
        print(model(held_out).sum())
    model(batch).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
"""
_AFTER = """\
import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard

torch.cuda.set_device(local_rank)
model = torch.nn.Linear(8, 8).to(device)
for tensor in [*model.parameters(), *model.buffers()]:
    dist.broadcast(tensor.detach(), src=0)
fully_shard(model)
optimizer = torch.optim.AdamW(model.parameters())
for batch in batches:
    with torch.no_grad():
        print(model(held_out).sum())
    model(batch).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
"""

RULE = Rule(
    id="FS317",
    title="No inference_mode before the first training step",
    why=(
        "The tensors that a unit gathers into are made in its first forward and used ever after. Made under inference_mode, "
        "they take no part in training: it raises, or most gradients stay None without an error (measured: losses -20.7, "
        "-26.7, -32.6 instead of -20.7, -55.5, -96.5). Behind a training step inference_mode does no harm (measured with one "
        "and several units, reshard_after_forward on and off, and mixed precision) and stays. DDP worked in either order; "
        "FSDP1 raised."
    ),
    symbols=(_INFERENCE, _APART),
    roles=("hazard",),
    check=check,
    find=find,
    sources=("torch/distributed/fsdp/_fully_shard/_fsdp_param.py: init_unsharded_param", "measured on torch 2.13, two ranks"),
    examples=(Example(_BEFORE, _AFTER, Level.REVIEW),),
)
