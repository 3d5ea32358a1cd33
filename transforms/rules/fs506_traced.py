"""Models that are scripted before they are sharded, or traced, scripted or exported behind it."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from ..findings import Level
from ..migration import Migration
from ..ranks.evaluation import of_group
from ..ranks.guards import Guard, GuardFinder
from ..rule import Example, Outcome, Rule
from ..sites import Site
from ..training.passes import outside_name
from ..view import FileView

_TRACE = "torch.jit.trace"
_SCRIPT = "torch.jit.script"
_GRAPH = "torch.utils.tensorboard.SummaryWriter.add_graph"
_TRACERS = (_TRACE, "torch.jit.trace_module", _SCRIPT, "torch.onnx.export", "torch.export.export")


def find(migration: Migration) -> Iterator[Site]:
    """Calls that trace a model of a group once it is sharded, or put a scripted one in its place before."""
    for view in migration.views():
        for node in view.nodes(ast.Call):
            if not node.args:
                continue
            name = outside_name(view, node.func)
            if isinstance(node.func, ast.Attribute) and node.func.attr == "add_graph":
                name = _GRAPH
            if name not in (*_TRACERS, _GRAPH):
                continue
            values = tuple(view.values(node.args[0]))
            group = next((g for g in migration.groups.all if any(of_group(g, value) for value in values)), None)
            if group is None:
                continue
            relations = {migration.order.relation((view, node), (wrap.view, wrap.node)) for wrap in group.wraps}
            if relations & {"after", "both"} or _is_scripted_before(migration, view, node, str(name)):
                yield Site(view, node, str(name), "hazard", group, values, node)


def _is_scripted_before(migration: Migration, view: FileView, call: ast.Call, name: str) -> bool:
    """Whether the scripted model takes the place of the model that is wrapped later."""
    is_kept = isinstance(view.statement(call), (ast.Assign, ast.Return))
    return name == _SCRIPT and is_kept and migration.groups.of(view.values(call)) is not None


def check(site: Site, migration: Migration) -> Outcome:
    """A person has to decide what is traced in its place."""
    assert site.group is not None
    wraps = [(wrap.view, wrap.node) for wrap in site.group.wraps]
    if {migration.order.relation((site.view, site.node), wrap) for wrap in wraps} <= {"before", "unknown"}:
        return Outcome(
            Level.MANUAL,
            "a scripted model cannot be sharded: fully_shard registers hooks, which torch.jit refuses with a RuntimeError",
            "Leave torch.jit.script out where the model is trained on several ranks; torch.compile works with fully_shard.",
        )
    finder = migration.once("guards", None, lambda: GuardFinder(migration.program))
    guard = next(iter(finder.around(site.view, site.node)), None) or finder.callers_guarded(site.view, site.node)
    message = f"{site.member} of a sharded model raises: neither its hooks nor its DTensors can be traced"
    if guard is not None:
        message += (
            f"; only some ranks come here ({_place(guard)}), and where an except goes on after the error, the others "
            "wait in vain for what the forward gathers, or gather something else with them"
        )
    return Outcome(Level.MANUAL, message, _ADVICE)


def _place(guard: Guard) -> str:
    test = f"`{guard.view.text(guard.test)}`, " if guard.test is not None else ""
    return f"{test}{guard.view.path}:{guard.statement.lineno}"


_ADVICE = (
    "Trace the model before fully_shard, or a model of its own that stays whole and is loaded from "
    "get_model_state_dict(model, options=StateDictOptions(full_state_dict=True)), which all ranks call; or leave it out."
)
_TRACED = """\
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

model = FSDP(torch.nn.Linear(2, 2))
traced = torch.jit.trace(model, torch.zeros(1, 2))
"""

_SCRIPTED = """\
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

model = torch.nn.Linear(2, 2)
if scripted:
    model = torch.jit.script(model)
model = FSDP(model)
"""

RULE = Rule(
    id="FS506",
    title="Sharded models that are traced or exported",
    why=(
        "torch.jit and the exporters run or read a model as plain code over plain tensors. The hooks of fully_shard "
        "cannot be scripted, and tracing stops with an internal error at the first DTensor. DDP allowed it through "
        "model.module."
    ),
    symbols=(*_TRACERS, _GRAPH),
    roles=("hazard",),
    check=check,
    find=find,
    examples=(
        Example(
            _TRACED,
            _TRACED.replace("FullyShardedDataParallel as FSDP", "fully_shard").replace(
                "model = FSDP(torch.nn.Linear(2, 2))", "model = torch.nn.Linear(2, 2)\nfully_shard(model)"
            ),
            Level.MANUAL,
        ),
        Example(
            _SCRIPTED,
            _SCRIPTED.replace("FullyShardedDataParallel as FSDP", "fully_shard").replace(
                "model = FSDP(model)", "fully_shard(model)"
            ),
            Level.MANUAL,
        ),
    ),
)
