"""Reads of state in a function that only some ranks call: they move to its callers, which hand the results in."""

from __future__ import annotations

import ast
from dataclasses import dataclass, field

from ..analysis.scopes import dotted_path
from ..analysis.values import Wrapped
from ..groups import Group
from ..migration import Migration
from ..ranks.guards import Guard, GuardFinder, top_of_chain
from ..text.generated import LINE_LENGTH
from ..text.patches import Part, Patch
from ..training.in_scope import model_at
from ..view import FileView
from .reads import StateRead, last_name, reads


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


@dataclass(eq=False)
class Lift:
    """All that moves out of one function."""

    view: FileView
    function: ast.FunctionDef
    reads: list[StateRead]
    parameters: dict[ast.Call, str]
    """The new parameter that each read becomes."""
    callers: list[Caller] = field(default_factory=list)


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
    lift = Lift(view, function, together, _parameters(view, together))
    for caller_view, call in migration.program.callers(view, function):
        caller = _caller(migration, finder, lift, caller_view, call)
        if caller is None:
            return None
        lift.callers.append(caller)
    return lift if lift.callers else None


def _parameters(view: FileView, together: list[StateRead]) -> dict[ast.Call, str]:
    """Names for the new parameters: one for each model or optimizer that is read."""
    names: dict[str, str] = {}
    found: dict[ast.Call, str] = {}
    for read in together:
        receiver = read.optimizer if read.optimizer is not None else read.model
        text = view.text(receiver) if isinstance(receiver, ast.expr) else str(receiver)
        if text not in names:
            names[text] = view.free_name(read.call, f"{last_name(receiver)}_state_dict")
        found[read.call] = names[text]
    return found


def _caller(migration: Migration, finder: GuardFinder, lift: Lift, view: FileView, call: ast.Call) -> Caller | None:
    if any(isinstance(a, ast.Starred) for a in call.args) or any(k.arg is None for k in call.keywords):
        return None
    if len(migration.program.callees(view, call)) != 1:
        return None  # another method of the same name would get the new argument, too
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
    for read in lift.reads:
        receiver = read.optimizer if read.optimizer is not None else read.model
        given = argument_of(lift, view, call, receiver)
        model = argument_of(lift, view, call, read.model)
        if model is None and read.kind == "optimizer" and read.group is not None:
            model = model_at(migration.groups, view, call, read.group)
        if given is None or model is None:
            return None
        if guard is not None and view.names_in(call) & bound_between(view, guard, call):
            return None
        sources.append(Source(read, model, given if read.kind == "optimizer" else None))
    return Caller(view, call, place, guard, tuple(sources))


def argument_of(lift: Lift, view: FileView, call: ast.Call, node: ast.expr | Part | None) -> Part | None:
    """What a path in the function is at a call of it: ``self.model`` of ``trainer.save()`` is ``trainer.model``."""
    path = _path_of_model(lift.view, node) if isinstance(node, ast.expr) else node
    if not isinstance(path, str):
        return None
    root, dot, rest = path.partition(".")
    arguments = lift.function.args
    names = [a.arg for a in (*arguments.posonlyargs, *arguments.args)]
    if any(isinstance(n, ast.Name) and n.id == root and isinstance(n.ctx, ast.Store) for n in ast.walk(lift.function)):
        return None
    if root not in names and root not in [a.arg for a in arguments.kwonlyargs]:
        is_global = any(isinstance(n, ast.Name) and n.id == root for n in ast.walk(lift.view.tree))
        return path if is_global and view is lift.view else None
    argument = _argument_node(lift, call, ast.Name(root, ast.Load()))
    if argument is None or (dotted_path(argument) is None and dot):
        return None
    return f"{view.text(argument)}{dot}{rest}" if dot else view.keep(argument)


def _path_of_model(view: FileView, node: ast.expr) -> str | None:
    """``a.b`` for a chain of attributes, without the ``.module`` of wrappers, which goes."""
    if isinstance(node, ast.Attribute):
        base = _path_of_model(view, node.value)
        is_unwrapping = node.attr == "module" and any(isinstance(v, Wrapped) for v in view.values(node.value))
        return base if base is None or is_unwrapping else f"{base}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else None


def _argument_node(lift: Lift, call: ast.Call, node: ast.expr | Part | None) -> ast.expr | None:
    """The argument that a parameter gets at a call; the receiver for ``self``."""
    if not isinstance(node, ast.Name):
        return None
    arguments = lift.function.args
    names = [a.arg for a in (*arguments.posonlyargs, *arguments.args)]
    is_method = lift.view.enclosing_class(lift.function) is not None and names[:1] == ["self"]
    if is_method and node.id == "self":
        return call.func.value if isinstance(call.func, ast.Attribute) else None
    for keyword in call.keywords:
        if keyword.arg == node.id:
            return keyword.value
    place = names.index(node.id) - (1 if is_method else 0) if node.id in names else -1
    return call.args[place] if 0 <= place < len(call.args) else None


def bound_between(view: FileView, guard: Guard, node: ast.AST) -> set[str]:
    """Names that are assigned behind a guard, before a place."""
    end = view.source.span(node)[0]
    start = view.source.span(guard.statement)[0]
    return {
        inner.id
        for inner in ast.walk(view.function(node) or view.tree)
        if isinstance(inner, ast.Name)
        and isinstance(inner.ctx, ast.Store)
        and start <= view.source.span(inner)[0] < end
    }


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


def new_arguments(view: FileView, call: ast.Call, given: list[str], why: str) -> Patch:
    """Adds keyword arguments at the end of a call, on a line of their own where they would not fit."""
    source, text = view.source, ", ".join(given)
    every = [*call.args, *(keyword.value for keyword in call.keywords)]
    if not every:
        place = source.span(call)[1] - 1
        return Patch(view.path, place, place, (text,), why)
    place = max(source.span(node)[1] for node in every)
    line = source.line_of(place)
    first = source.position(min(source.span(node)[0] for node in every))
    is_hanging = first[0] != source.position(source.span(call)[0])[0]
    if not is_hanging and len(line.rstrip()) + len(text) + 2 <= LINE_LENGTH:
        return Patch(view.path, place, place, (f", {text}",), why)
    indent = source.indent_at(place) if is_hanging else " " * (first[1] - 1)
    return Patch(view.path, place, place, ("".join(f",\n{indent}{argument}" for argument in given),), why)


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
        patches.append(new_arguments(caller, call, [f"{name}={model}"], why))
    return (name, patches) if callers else None
