"""``FSDP.optim_state_dict_to_load`` and its older kin: converting optimizer state for loading."""

from __future__ import annotations

import ast
from typing import TypeGuard

from ..analysis.symbols import FSDP1
from ..findings import Level
from ..leaving.harmless import is_harmless
from ..migration import Migration
from ..rule import Example, Outcome, Rule
from ..sites import Site
from ..state.loads import TO_LOAD, conversion_of, optimizer_loads, plan_load
from ..state.reads import last_name
from ..text.generated import removed
from ..text.patches import Patch
from ..view import FileView

_WHY = "set_optimizer_state_dict takes the state as it was saved"
_WHOLE = "whole tensors of a full state would stand beside sharded parameters, and the next step raises"


def check(site: Site, migration: Migration) -> Outcome:
    """The conversion goes: its argument takes its place, unless the load already took that."""
    if site.role == "keyword":
        return Outcome(Level.SAFE, "part of its call", silent=True)
    view, call = site.view, site.call
    conversion = conversion_of(view, call) if call is not None else None
    if call is None or conversion is None:
        return Outcome(
            Level.MANUAL,
            f"the arguments of {site.member} could not be told apart",
            "Drop the call and give the saved state to set_optimizer_state_dict(model, optimizer, state, options=…).",
            holds=True,
        )
    for other, load, group in optimizer_loads(migration):
        if other is not view:
            continue
        plan = plan_load(migration, view, load, group)
        if plan is None or plan.conversion is None or plan.conversion.call is not call:
            continue
        if plan.drops is not None or load.args[:1] == [call]:
            return Outcome(Level.SAFE, f"{site.member} and the load become one set_optimizer_state_dict")
    outcome = Outcome(Level.SAFE, f"{site.member} goes: set_optimizer_state_dict takes the state as it was saved")
    statement = view.statement(call)
    loaded = _loaded_by_callers(migration, view, call)
    if loaded is not None:
        outcome.message += f", at {loaded[0].path}:{view.line(loaded[1])}"
    elif _is_returned(view, call) or not any(group is site.group for _, _, group in optimizer_loads(migration)):
        if _goes_nowhere(view, statement, call):
            return Outcome(
                Level.MANUAL,
                f"nothing reads what {site.member} gives back here, so no optimizer gets the state; with an FSDP2 model the "
                "call raises",
                "If the state is to be loaded, hand the optimizer in and call set_optimizer_state_dict(model, optimizer, "
                "state, options=StateDictOptions(full_state_dict=True, broadcast_from_rank0=True)) on all ranks; else "
                "drop the call.",
            )
        scatters = site.member == "scatter_full_optim_state_dict"
        outcome.level = Level.REVIEW
        outcome.message = f"{site.member} goes, and the state is handed on as it was saved; " + _loaded_behind(view, call)
        line = _speaks_of_scattering(view, call) if scatters else None
        if line is not None:
            outcome.message += f"; the message in line {line} still speaks of scattering"
        scattered = ", broadcast_from_rank0=True" if scatters else ""
        outcome.advice = (
            "Load it on all ranks with set_optimizer_state_dict(model, optimizer, state, "
            f"options=StateDictOptions(full_state_dict=True{scattered})): optimizer.load_state_dict() needs shards."
        )
    if isinstance(statement, ast.Expr) and statement.value is call:
        outcome.level = Level.REVIEW
        outcome.message += "; its result was not used here"
    targets = statement.targets if isinstance(statement, ast.Assign) and statement.value is call else []
    if [view.text(target) for target in targets] == [view.text(conversion.state)]:
        outcome.patches.append(removed(view, _with_its_condition(view, statement), _WHY))
        return outcome
    start, end = _with_its_choice(view, call, conversion.state)
    outcome.patches.append(Patch(view.path, start, end, (view.keep(conversion.state),), _WHY))
    return outcome


def _loaded_by_callers(migration: Migration, view: FileView, call: ast.Call) -> tuple[FileView, ast.Call] | None:
    """The load of what the function around a conversion returns, where it returns nothing else."""
    function = view.function(call)
    if not isinstance(function, ast.FunctionDef):
        return None
    returned = [n.value for n in ast.walk(function) if isinstance(n, ast.Return) and n.value is not None]
    statement = view.statement(call)
    names = [view.text(target) for target in statement.targets] if isinstance(statement, ast.Assign) else []
    if not returned or not all(call in ast.walk(value) or view.text(value) in names for value in returned):
        return None
    for caller, outer in migration.program.callers(view, function):
        given = caller.statement(outer)
        kept = [caller.text(target) for target in given.targets] if isinstance(given, ast.Assign) else []
        for load in ast.walk(caller.function(outer) or caller.tree):
            if _is_load(load) and (load.args[0] is outer or caller.text(load.args[0]) in kept):
                return caller, load
    return None


def _is_returned(view: FileView, call: ast.Call) -> bool:
    """Whether a function hands the result to its callers, of which none is seen to load it."""
    statement = view.statement(call)
    names = [view.text(target) for target in statement.targets] if isinstance(statement, ast.Assign) else []
    returned = [n.value for n in ast.walk(view.function(call) or view.tree) if isinstance(n, ast.Return) and n.value is not None]
    return any(call in ast.walk(value) or view.text(value) in names for value in returned)


def _loaded_behind(view: FileView, call: ast.Call) -> str:
    """What is to be said of the load behind a conversion, where the state passes through other code before it."""
    statement = view.statement(call)
    names = [view.text(target) for target in statement.targets] if isinstance(statement, ast.Assign) else []
    for load in ast.walk(view.function(call) or view.tree):
        if _is_load(load) and any(isinstance(n, ast.Name) and n.id in names for n in ast.walk(load.args[0])):
            return (
                f"line {view.line(load)} loads it as it comes, by position: sharded state fits, but {_WHOLE}"
            )
    return f"what loads it is not seen here: with optimizer.load_state_dict() {_WHOLE}"


def _speaks_of_scattering(view: FileView, call: ast.Call) -> int | None:
    """The line of a text around the call, as of a log, that says the state is scattered, which the load does now."""
    function = view.function(call)
    texts = [node for node in ast.walk(function) if isinstance(node, ast.Constant)] if function is not None else []
    said = [text for text in texts if "scattering" in str(text.value).lower() and not isinstance(view.parents[text], ast.Expr)]
    return view.line(said[0]) if said else None


def _is_load(node: ast.AST) -> TypeGuard[ast.Call]:
    """``optimizer.load_state_dict(state)``."""
    called = node.func if isinstance(node, ast.Call) and node.args else None
    return isinstance(called, ast.Attribute) and called.attr == "load_state_dict" and "optim" in last_name(called.value).lower()


def _goes_nowhere(view: FileView, statement: ast.stmt, call: ast.Call) -> bool:
    """Whether the result is dropped, or kept under a local name that its function never reads."""
    if isinstance(statement, ast.Expr):
        return statement.value is call
    function = view.function(statement)
    if function is None or not isinstance(statement, ast.Assign) or statement.value is not call:
        return False
    names = {target.id for target in statement.targets if isinstance(target, ast.Name)}
    shared = any(isinstance(node, (ast.Global, ast.Nonlocal)) and names & {*node.names} for node in ast.walk(function))
    read = {node.id for node in ast.walk(function) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)}
    return len(names) == len(statement.targets) and not shared and not names & read


def _with_its_choice(view: FileView, call: ast.Call, state: ast.expr) -> tuple[int, int]:
    """Where ``convert(state) if sharded else state`` stands, whose branches are one now; or the call alone."""
    choice = view.parents[call]
    if not isinstance(choice, ast.IfExp) or call is choice.test or not is_harmless(view, choice.test):
        return view.source.span(call)
    other = choice.orelse if call is choice.body else choice.body
    if view.text(other) != view.text(state):
        return view.source.span(call)
    start, end = view.source.span(choice)
    text = view.source.text
    before, behind = text[:start].rstrip(), text[end:].lstrip()
    assigned = view.parents[choice]
    if isinstance(assigned, ast.Assign) and before.endswith("(") and behind.startswith(")"):
        return len(before) - 1, len(text) - len(behind) + 1
    return start, end


def _with_its_condition(view: FileView, statement: ast.stmt) -> ast.stmt:
    """The ``if`` that does nothing without this statement, or the statement itself."""
    parent = view.parents[statement]
    if isinstance(parent, ast.If) and parent.body == [statement] and not parent.orelse:
        is_pure = not any(isinstance(node, (ast.Call, ast.NamedExpr, ast.Await)) for node in ast.walk(parent.test))
        if is_pure and not view.text(parent).startswith("elif"):
            return parent
    return statement


RULE = Rule(
    id="FS407",
    title="Converting optimizer state for loading",
    why=(
        "FSDP1 had to cut saved optimizer state into its flat parameters before optimizer.load_state_dict. "
        "set_optimizer_state_dict does both, and broadcast_from_rank0=True takes the place of "
        "scatter_full_optim_state_dict."
    ),
    symbols=tuple(f"{FSDP1}.{name}{end}" for name in TO_LOAD for end in ("", "(*")),
    roles=("call", "keyword", "use"),
    check=check,
    sources=("https://docs.pytorch.org/docs/stable/distributed.checkpoint.html",),
    examples=(
        Example(
            before="""\
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


def main(state):
    model = FSDP(torch.nn.Linear(2, 2), use_orig_params=True)
    optimizer = torch.optim.AdamW(model.parameters())
    optimizer.load_state_dict(FSDP.optim_state_dict_to_load(model, optimizer, state))
""",
            after="""\
import torch
from torch.distributed.checkpoint.state_dict import StateDictOptions, set_optimizer_state_dict
from torch.distributed.fsdp import fully_shard


def main(state):
    model = torch.nn.Linear(2, 2)
    fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters())
    set_optimizer_state_dict(
        model, optimizer, state, options=StateDictOptions(full_state_dict=True)
    )
""",
        ),
    ),
    proof=("finetuning_package", "full_optimizer_resume"),
)
