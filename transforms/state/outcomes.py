"""What comes of a read of state: the outcome with its patches, in place, in front of a guard, or in the callers."""

from __future__ import annotations

import ast
from dataclasses import replace

from ..findings import Level
from ..migration import Migration
from ..ranks.evaluation import is_evaluated, reshard_lines
from ..ranks.front import condition_in_front
from ..ranks.guards import GuardFinder
from ..rule import Outcome
from ..text.patches import Part
from .lifting import Caller, Lift, is_in_training_loop, new_arguments, new_parameters
from .plans import ReadPlan, StateOptions, gathered_name, plan_of
from .reads import StateRead
from .writing import named_state, read_call, write_read

_WHY = "gathering is collective: the callers do it on all ranks and hand the result in"


def optimizer_outcome(migration: Migration, read: StateRead) -> Outcome:
    """``optimizer.state_dict()`` becomes ``get_optimizer_state_dict``."""
    if _reads_settings(read):
        return Outcome(Level.OK, "only the settings of the parameter groups are read, which hold no tensors")
    plan = plan_of(migration, read)
    if plan.problem:
        return Outcome(Level.MANUAL, plan.problem, plan.advice, holds=True)
    message = "the optimizer state is gathered from the shards; its keys are parameter names instead of numbers"
    if plan.lift is not None:
        message += "; the callers do it on all ranks and hand it in"
    if plan.guard is not None:
        message += ", on all ranks in front of the rank guard"
    level = Level.REVIEW if plan.notes or plan.lift is not None else Level.SAFE
    outcome = Outcome(level, "; ".join([message, *plan.notes]))
    write_state(migration, read, plan, outcome)
    return outcome


def _reads_settings(read: StateRead) -> bool:
    """``optimizer.state_dict()["param_groups"]``."""
    parent = read.view.parents[read.call]
    return (
        isinstance(parent, ast.Subscript)
        and isinstance(parent.slice, ast.Constant)
        and parent.slice.value == "param_groups"
    )


def write_state(migration: Migration, read: StateRead, plan: ReadPlan, outcome: Outcome) -> None:
    """Adds the patches of a read to its outcome."""
    lift = plan.lift
    if lift is None:
        write_read(migration, read, plan, outcome)
        return
    lifted = migration.once("lifted", lift, lambda: _write_lift(migration, lift))
    outcome.patches.extend(lifted.patches)
    outcome.needs.extend(lifted.needs)


def _write_lift(migration: Migration, lift: Lift) -> Outcome:
    """The patches for all reads of a function together."""
    outcome = Outcome(Level.SAFE, "")
    names = list(dict.fromkeys(lift.parameters.values()))
    outcome.patches.append(new_parameters(lift.view, lift.function, names, _WHY))
    for read in lift.reads:
        outcome.patches.append(read.view.replace(read.call, lift.parameters[read.call], _WHY))
    for caller in lift.callers:
        _write_caller(migration, lift, caller, outcome)
    return outcome


def _write_caller(migration: Migration, lift: Lift, caller: Caller, outcome: Outcome) -> None:
    finder = migration.once("guards", None, lambda: GuardFinder(migration.program))
    view, guard = caller.view, caller.guard
    condition = condition_in_front(finder, view, guard, caller.call) if guard is not None else ""
    indent = view.indent(caller.place)
    inner = indent + ("    " if condition else "")
    parts: list[Part] = [f"{indent}if {condition}:\n"] if condition else []
    options = StateOptions(cpu_offload=caller.rank_zero_alone)
    given: list[str] = []
    if all(source.read.kind == "optimizer" for source in caller.sources):
        first = caller.sources[0]
        if is_evaluated(migration, first.read.group):
            parts.extend(reshard_lines(migration, outcome, view, first.model, inner, caller.call))
    for source in sorted(caller.sources, key=lambda source: source.read.kind):
        receiver = source.optimizer if source.optimizer is not None else source.model
        name = gathered_name(migration, view, caller.call, source.read.kind, receiver)
        argument = f"{lift.parameters[source.read.call]}={name}"
        if argument in given:
            continue
        given.append(argument)
        written = replace(source.read, view=view, model=source.model, optimizer=source.optimizer)
        gathered = read_call(migration, written, ReadPlan(options=options), outcome, caller.call)
        is_fresh = plan_of(migration, source.read).fresh
        parts.extend(named_state(migration, written, is_fresh, outcome, name, inner, gathered))
        if source.read.prefixed:
            parts.append(f'{inner}{name} = {{f"module.{{name}}": tensor for name, tensor in {name}.items()}}\n')
    outcome.patches.extend(new_arguments(view, caller.call, given, _WHY))
    outcome.patches.append(view.insert_before(caller.place, parts, _WHY))
    if is_in_training_loop(migration, caller) and not caller.rank_zero_alone and not condition:
        _release(migration, caller, [argument.partition("=")[2] for argument in given], outcome)


def _release(migration: Migration, caller: Caller, names: list[str], outcome: Outcome) -> None:
    """Lets go of what is gathered behind the statement that uses it, rather than hold it until the next round."""
    view, released = caller.view, migration.once("released", (caller.view, caller.place), set[str])
    fresh = [name for name in names if name not in released]
    released.update(fresh)
    if fresh:
        text = f"{view.indent(caller.place)}del {', '.join(fresh)}\n"
        outcome.patches.append(view.insert_after(caller.place, text, "a whole copy is not held while the model trains on"))
