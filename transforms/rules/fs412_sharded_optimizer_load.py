"""``load_sharded_optimizer_state_dict``: FSDP1's way to read sharded optimizer state."""

from __future__ import annotations

import ast
from collections.abc import Sequence

from ..findings import Level
from ..migration import Migration
from ..rule import Example, Outcome, Rule
from ..sites import Site
from ..state.beside_steps import kept_beside_steps
from ..state.contexts import bound_arguments
from ..state.later_schedulers import REFUSES, later_scheduler, makes_room
from ..state.loads import Conversion, conversion_of
from ..state.opened import is_context_call
from ..state.writing import GET_OPTIMIZER
from ..text.generated import call_text
from ..text.patches import Part
from ..training.in_scope import model_at, optimizer_at
from ..view import FileView

_SYMBOL = "torch.distributed.checkpoint.optimizer.load_sharded_optimizer_state_dict"
_WHY = "dcp.load fills the state of the optimizer in place"


def check(site: Site, migration: Migration) -> Outcome:
    """The read becomes dcp.load into get_optimizer_state_dict."""
    if site.role == "keyword":
        return Outcome(Level.SAFE, "part of its call", silent=True)
    view, call = site.view, site.call
    statement = view.statement(site.node)
    parameters = ("model_state_dict", "optimizer_key", "storage_reader", "planner")
    arguments = bound_arguments(call, parameters) if call else {}
    target = statement.targets[0] if isinstance(statement, ast.Assign) and len(statement.targets) == 1 else None
    if call is None or not isinstance(target, ast.Name) or view.statement(call) is not statement:
        return _manual("its result is not assigned to a name of its own")
    if getattr(statement, "value", None) is not call or not {"storage_reader", "optimizer_key"} <= arguments.keys():
        return _manual("its result is not assigned to a name of its own")
    conversion = _conversion_after(site, target.id)
    model: Part | None = None
    optimizer: Part | None = None
    if conversion is not None:
        model = view.keep(conversion.model) if conversion.model is not None else None
        optimizer = view.keep(conversion.optimizer) if conversion.optimizer is not None else None
    if site.group is not None:
        model = model or model_at(migration.groups, view, call, site.group)
        optimizer = optimizer or optimizer_at(view, call, site.group)
    level = Level.SAFE
    if model is None or optimizer is None:
        level = Level.REVIEW
        model = model or _model_of_context(site)
        optimizer = optimizer or _optimizer_by_name(site)
    if model is None or optimizer is None:
        return _manual("no names here refer to the model and its optimizer")
    message = "dcp.load fills the state of the optimizer in place; files of FSDP1 are read as they are"
    if level is Level.REVIEW:
        message += "; that these are the model and its optimizer is told by their names"
    beside = kept_beside_steps(migration)
    if beside:
        level = Level.REVIEW
        message += (
            f"; a new optimizer gets back what its first step makes, and not {beside}, which load_sharded_optimizer_state_dict "
            "read as well: set it in the new optimizer's state before, to have it loaded"
        )
    held = view.values(conversion.optimizer) if conversion is not None and conversion.optimizer is not None else ()
    later = later_scheduler(migration, view, call, held or (site.group.optimizers if site.group is not None else ()))
    room: list[Part] = []
    indent = view.indent(statement)
    if later is not None:
        level = Level.REVIEW
        message += later.message(view, REFUSES)
    if later is not None and later.is_sure:
        first, *others = makes_room(view, call, optimizer)
        room = [str(first).removeprefix(indent), *others, indent]
    outcome = Outcome(level, message)
    get = migration.use(outcome, view, GET_OPTIMIZER, call)
    load = _spelling_of_load(view) or migration.use(outcome, view, "torch.distributed.checkpoint.load", call)
    loaded: list[Sequence[Part]] = [(target.id,), ("storage_reader=", view.keep(arguments["storage_reader"]))]
    if "planner" in arguments:
        loaded.append(("planner=", view.keep(arguments["planner"])))
    parts: tuple[Part, ...] = (
        *room,
        f"{target.id} = {{",
        view.keep(arguments["optimizer_key"]),
        ": ",
        *call_text(get, [(model,), (optimizer,)], indent, len(indent) + len(target.id) + 12),
        "}\n",
        indent,
        *call_text(load, loaded, indent, len(indent)),
    )
    outcome.patches.append(view.replace(statement, parts, _WHY))
    return outcome


def _spelling_of_load(view: FileView) -> str | None:
    """How the file itself calls Distributed Checkpoint's functions, if by the name of the module."""
    for node in view.nodes(ast.Attribute):
        if node.attr not in ("load_state_dict", "save_state_dict"):
            continue
        if view.external(node.value) in ("torch.distributed.checkpoint", "torch.distributed._shard.checkpoint"):
            return f"{view.text(node.value)}.load"
    return None


def _model_of_context(site: Site) -> Part | None:
    """The model that a ``state_dict_type`` in the same function is given."""
    scope = site.view.function(site.node) or site.view.tree
    for node in ast.walk(scope):
        if isinstance(node, ast.Call) and is_context_call(site.view, node):
            model = bound_arguments(node, ("module",)).get("module")
            return site.view.keep(model) if model is not None else None
    return None


def _optimizer_by_name(site: Site) -> str | None:
    """A parameter of the function that is called like an optimizer."""
    function = site.view.function(site.node)
    names = [a.arg for a in ast.walk(function) if isinstance(a, ast.arg)] if function is not None else []
    return next((name for name in names if name in ("optim", "optimizer", "opt")), None)


def _conversion_after(site: Site, name: str) -> Conversion | None:
    """The conversion that the state is given to, which knows the model and the optimizer."""
    scope = site.view.function(site.node) or site.view.tree
    for node in ast.walk(scope):
        if isinstance(node, ast.Call):
            conversion = conversion_of(site.view, node)
            if conversion is not None and name in site.view.names_in(conversion.state):
                return conversion
    return None


def _manual(what: str) -> Outcome:
    return Outcome(
        Level.MANUAL,
        what,
        'state = {"optim": get_optimizer_state_dict(model, optimizer)}; dcp.load(state, storage_reader=reader); '
        'set_optimizer_state_dict(model, optimizer, state["optim"]).',
        holds=True,
    )


RULE = Rule(
    id="FS412",
    title="Reading sharded optimizer state",
    why=(
        "load_sharded_optimizer_state_dict builds FSDP1's sharded tensors. With FSDP2 the optimizer's own state is the "
        "template: get_optimizer_state_dict makes it, dcp.load fills it, set_optimizer_state_dict puts it back."
    ),
    symbols=(_SYMBOL, f"{_SYMBOL}(*"),
    roles=("call", "keyword", "reference"),
    check=check,
    sources=("https://docs.pytorch.org/tutorials/recipes/distributed_checkpoint_recipe.html",),
    examples=(
        Example(
            before="""\
import torch.distributed.checkpoint as dist_cp
from torch.distributed.checkpoint.optimizer import load_sharded_optimizer_state_dict
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


def load(model, optim, weights, reader):
    state = load_sharded_optimizer_state_dict(
        model_state_dict=weights,
        optimizer_key="optim",
        storage_reader=reader,
    )
    return FSDP.optim_state_dict_to_load(model, optim, state["optim"])
""",
            after="""\
import torch.distributed.checkpoint as dist_cp
from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict


def load(model, optim, weights, reader):
    state = {"optim": get_optimizer_state_dict(model, optim)}
    dist_cp.load(state, storage_reader=reader)
    return state["optim"]
""",
        ),
    ),
    proof=("finetuning_package",),
)
