"""Reads of state in a function that only some ranks call: they move to its callers, which hand the results in."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass, field

from ..groups import Group
from ..migration import Migration
from ..ranks.front import left_out
from ..ranks.guards import Guard, GuardFinder, bound_between, top_of_chain
from ..receivers import callees_on_self
from ..text.generated import LINE_LENGTH, STEP
from ..text.patches import Part, Patch
from ..training.in_scope import holds_ddp, inside_data_parallel, model_at
from ..training.passes import calls_named
from ..view import FileView
from .arithmetic import is_computed_with
from .passages import Passage
from .reads import StateRead, last_name, reads

_CHANGES = frozenset({"step", "backward", "load_state_dict"})


@dataclass(frozen=True)
class Source:
    """A read of the function as its caller has to write it."""

    read: StateRead
    model: Part
    optimizer: Part | None


@dataclass(frozen=True, eq=False)
class Caller:
    """A call of the function, and the statement in front of which all ranks still come."""

    view: FileView
    call: ast.Call
    place: ast.stmt
    guard: Guard | None
    sources: tuple[Source, ...]
    rank_zero_alone: bool
    """Whether only rank 0 goes on to use what is gathered."""


@dataclass(eq=False)
class Lift:
    """All that moves out of one function."""

    view: FileView
    function: ast.FunctionDef
    reads: list[StateRead]
    parameters: dict[ast.Call, str]
    """The new parameter that each read becomes."""
    callers: list[Caller] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    """What the callers now do that they did not do before."""


def lift_of(migration: Migration, finder: GuardFinder, read: StateRead) -> Lift | None:
    """How the reads of a function move to its callers; None where they cannot."""
    function = read.view.function(read.call)
    if not isinstance(function, ast.FunctionDef):
        return None
    return migration.once("lift", (function, read.group), lambda: _lift(migration, finder, read, function))


def _lift(migration: Migration, finder: GuardFinder, read: StateRead, function: ast.FunctionDef) -> Lift | None:
    view = read.view
    together = [
        other for other in reads(migration) if other.view is view and other.group is read.group
        and view.function(other.call) is function
    ]  # fmt: skip
    if any(other.legacy or (other.kind == "model" and (other.call.args or other.call.keywords)) for other in together):
        return None
    if any(isinstance(node, (ast.Yield, ast.YieldFrom)) for node in ast.walk(function)):
        return None
    if calls_named(migration, view, function.body, _CHANGES):
        return None  # what is read after a change is not what the caller finds in front of the call
    lift = Lift(view, function, together, _parameters(view, together))
    own = migration.program.function_value(view, function)
    for caller_view, call in migration.program.callers(view, function):
        if own not in callees_on_self(migration.program, caller_view, call):
            continue
        caller = _caller(migration, finder, lift, caller_view, call)
        if caller is None:
            return None
        lift.callers.append(caller)
        dropped = left_out(finder, caller.view, caller.guard, caller.call) if caller.guard is not None else []
        lift.notes += [f"all ranks gather also where `{text}` does not hold" for text in dropped[:1]]
    if not all(caller.rank_zero_alone for caller in lift.callers):
        lift.notes.append("every rank gets the full state, on its device")
    if any(is_in_training_loop(migration, caller) for caller in lift.callers):
        lift.notes.append("it is gathered in every round of a loop that trains")
    lift.notes = list(dict.fromkeys(lift.notes))
    return lift if lift.callers else None


def is_in_training_loop(migration: Migration, caller: Caller) -> bool:
    """Whether the state is gathered inside a loop that runs backward, next to it."""
    loop = next((a for a in caller.view.ancestors(caller.place) if isinstance(a, (ast.For, ast.While))), None)
    return loop is not None and calls_named(migration, caller.view, loop.body, frozenset({"backward"}))


def _parameters(view: FileView, together: list[StateRead]) -> dict[ast.Call, str]:
    """Names for the new parameters: one for each model or optimizer that is read."""
    receivers = {read.call: read.optimizer if read.optimizer is not None else read.model for read in together}
    texts = {call: view.text(r) if isinstance(r, ast.expr) else str(r) for call, r in receivers.items()}
    models = {texts[read.call] for read in together if read.kind == "model"}
    names: dict[str, str] = {}
    for read in together:
        own = last_name(receivers[read.call])
        if read.kind == "model" and len(models) == 1 and "model" in own.lower():
            own = "model"  # the same in methods that override each other, whatever they call it
        if texts[read.call] not in names:
            names[texts[read.call]] = view.free_name(read.call, f"{own}_state_dict")
    return {call: names[text] for call, text in texts.items()}


def _caller(migration: Migration, finder: GuardFinder, lift: Lift, view: FileView, call: ast.Call) -> Caller | None:
    if any(isinstance(a, ast.Starred) for a in call.args) or any(k.arg is None for k in call.keywords):
        return None
    if len(callees_on_self(migration.program, view, call)) != 1 or migration.program.is_applied(view, call):
        return None  # another method of the same name, or ``map``, would get the new argument, too
    if isinstance(view.function(call), ast.Lambda) or finder.callers_guarded(view, call) is not None:
        return None
    guards = finder.around(view, call)
    if any(guard.kind == "decorator" for guard in guards):
        return None
    guard = guards[0] if guards else None
    place = guard.statement if guard is not None else view.statement(call)
    if isinstance(place, ast.While):
        return None
    if isinstance(place, ast.If):
        place = top_of_chain(view, place)
    sources: list[Source] = []
    passage = Passage(migration.program, lift.view, lift.function, view, call)
    for read in lift.reads:
        receiver = read.optimizer if read.optimizer is not None else read.model
        given, model = passage.outside(receiver), passage.outside(read.model)
        if model is None and read.kind == "optimizer" and read.group is not None:
            model = model_at(migration.groups, view, call, read.group)
        if given is None or model is None:
            return None
        if read.may_be_ddp and read.kind == "optimizer" and not holds_ddp(view, call, model):
            return None
        if guard is not None and view.names_in(call) & bound_between(view, guard, call):
            return None
        sources.append(Source(read, model, given if read.kind == "optimizer" else None))
    own = finder.lets_only_rank_zero_to(lift.view, lift.function.body[0])
    alone = (own or finder.lets_only_rank_zero_to(view, call)) and not any(
        is_computed_with(read.view, read.call) for read in lift.reads
    )
    return Caller(view, call, place, guard, tuple(sources), alone)


def new_parameters(view: FileView, function: ast.FunctionDef, names: list[str], why: str) -> Patch:
    """Adds parameters to a function's signature."""
    arguments = function.args
    every = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
    if arguments.vararg is not None:
        every.append(arguments.vararg)
    ends = [view.source.span(a)[1] for a in every]
    ends += [view.source.span(d)[1] for d in (*arguments.defaults, *arguments.kw_defaults) if d is not None]
    text = ", ".join(names)
    if not ends:
        place = view.source.text.index("(", view.source.span(function)[0]) + 1
        return Patch(view.path, place, place, (text + (", " if arguments.kwarg else ""),), why)
    needs_star = bool(arguments.defaults) and arguments.vararg is None and not arguments.kwonlyargs
    return Patch(view.path, max(ends), max(ends), (f", *, {text}" if needs_star else f", {text}",), why)


def new_arguments(view: FileView, call: ast.Call, given: list[str], why: str) -> list[Patch]:
    """Adds keyword arguments at the end of a call: on lines of their own, like the others, where they would not fit."""
    source, text = view.source, ", ".join(given)
    start, end = source.span(call)
    every = sorted(map(source.span, (*call.args, *call.keywords)))
    if not every:
        return [Patch(view.path, end - 1, end - 1, (text,), why)]
    place = every[-1][1]
    first, last = source.position(every[0][0]), source.position(place)
    is_hanging = first[0] != source.position(start)[0]
    if not is_hanging and len(source.line_of(place).rstrip()) + len(text) + 2 <= LINE_LENGTH:
        return [Patch(view.path, place, place, (f", {text}",), why, needed=True)]
    if not is_hanging and first[0] == last[0]:
        return list(_on_lines(view, call, given, why))
    indent = source.indent_at(place) if is_hanging else " " * (first[1] - 1)
    text = "".join(f",\n{indent}{argument}" for argument in given)
    return [Patch(view.path, place, place, (text,), why, needed=True)]


def _on_lines(view: FileView, call: ast.Call, given: list[str], why: str) -> Iterator[Patch]:
    """Breaks a call of one line before each argument and behind the last."""
    source = view.source
    start, end = source.span(call)
    indent = source.indent_at(start)
    reached = source.span(call.func)[1]
    for begin, stop in sorted(map(source.span, (*call.args, *call.keywords))):
        yield Patch(view.path, reached, begin, (f"{source.text[reached:begin].rstrip()}\n{indent}{STEP}",), why)
        reached = stop
    added = "".join(f"\n{indent}{STEP}{argument}," for argument in given)
    yield Patch(view.path, reached, end, (f",{added}\n{indent})",), why)


def passed_in_model(
    migration: Migration, view: FileView, node: ast.AST, group: Group, why: str
) -> tuple[str, list[Patch]] | None:
    """A new parameter for the model, with what every caller gives for it; None where a caller has no name for it."""
    function = view.function(node)
    if not isinstance(function, ast.FunctionDef):
        return None
    callers = migration.program.callers(view, function)
    name = view.free_name(node, "model")
    patches = [new_parameters(view, function, [name], why)]
    for caller, call in callers:
        model = model_at(migration.groups, caller, call, group)
        unpacks = any(isinstance(a, ast.Starred) for a in call.args) or any(k.arg is None for k in call.keywords)
        if model is None or unpacks or len(migration.program.callees(caller, call)) != 1:
            return None
        if migration.program.is_applied(caller, call):
            return None
        patches.extend(new_arguments(caller, call, [f"{name}={inside_data_parallel(caller, call, model)}"], why))
    return (name, patches) if callers else None
