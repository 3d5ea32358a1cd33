"""Forwards of a model: whether it is evaluated, and which functions run it."""

from __future__ import annotations

import ast

from ..analysis.facts import NOTHING, Call
from ..analysis.values import Annotated, FunctionValue, Value, Wrapped
from ..groups import Group
from ..migration import Migration
from ..rule import Outcome
from ..state.reads import last_name
from ..text.patches import Part
from ..training.in_scope import means_a_model
from ..training.passes import FORWARD, passes_in
from ..view import FileView
from .guards import GuardFinder
from .made_here import is_made_here, is_made_in

_RUNS = frozenset({"generate", "forward", "__call__"})
_NO_GRADIENTS = frozenset({"torch.no_grad", "torch.inference_mode", "torch.autograd.no_grad"})


def is_evaluated(migration: Migration, group: Group | None) -> bool:
    """Whether a group's model is put into evaluation mode, or runs without gradients, anywhere.

    After a forward without a backward the root (and every unit with ``reshard_after_forward=False``) keeps whole,
    plain parameters registered; what asks for the sharded ones then finds the wrong ones.
    """
    if group is None:
        return True

    def find() -> bool:
        flow = migration.program.flow
        return _runs_without_gradients(migration, group) or any(
            call.method == "eval"
            and any(of_group(group, value) for value in flow.values_of(call.function))
            and _is_for_the_model(migration, group, number, call)
            for number, call in enumerate(flow.calls)
        )

    return migration.once("is evaluated", group, find)


def _is_for_the_model(migration: Migration, group: Group, number: int, call: Call) -> bool:
    """Whether ``model.eval()`` may be about the group's model: not about one that is made there, or for every caller."""
    view, node = migration.program.call_node(number)
    receiver = node.func.value if isinstance(node.func, ast.Attribute) else node.func
    if call.owner < 0 or not isinstance(receiver, ast.Name):
        return True
    flow = migration.program.flow
    function = FunctionValue(flow.file_of_call(number), call.owner)
    if is_made_in(migration, function, view, receiver, group):
        return False
    facts = migration.program.files[function.file].functions[function.index]
    parameters = {name for name, _ in (*facts.positional, *facts.keyword_only)} - {"self", "cls"}
    if receiver.id not in parameters:
        return True
    handing = [site for site in flow.called.get(function, ()) if any(_passed(migration, group, site))]
    return not handing or any(_passes_the_model(migration, group, site) for site in handing)


def _runs_without_gradients(migration: Migration, group: Group) -> bool:
    """Whether a forward runs under ``no_grad`` or ``inference_mode``, in a block or in a decorated function."""
    for view in migration.views():
        for node in view.nodes(ast.With, ast.AsyncWith, ast.FunctionDef, ast.AsyncFunctionDef):
            contexts = (
                [item.context_expr for item in node.items]
                if isinstance(node, (ast.With, ast.AsyncWith))
                else node.decorator_list
            )
            called = [context.func if isinstance(context, ast.Call) else context for context in contexts]
            if any(view.external(context) in _NO_GRADIENTS for context in called):
                if FORWARD in passes_in(migration, view, node.body, group):
                    return True
    return False


def reshard_lines(
    migration: Migration, outcome: Outcome, view: FileView, model: Part, indent: str, node: ast.AST
) -> list[Part]:
    """Statements that put every unit of a model back to its shards."""
    name = migration.use(outcome, view, "torch.distributed.fsdp.FSDPModule", node)
    unit = view.free_name(node, "module")
    return [
        f"{indent}# a forward without a backward leaves whole parameters behind\n",
        f"{indent}for {unit} in ",
        model,
        f".modules():\n{indent}    if isinstance({unit}, {name}):\n{indent}        {unit}.reshard()\n",
    ]


def runs_of(migration: Migration, group: Group) -> set[int]:
    """Calls (by number) that run a group's model, themselves or through functions of the repository."""
    return migration.once("runs", group, lambda: _runs(migration, group))


def _runs(migration: Migration, group: Group) -> set[int]:
    program = migration.program
    flow = program.flow
    calls = migration.once("calls by model", None, lambda: _calls_by_model(migration))
    own = {number for value in _models(group) for number in calls.get(flow.ids.get(value, NOTHING), ())}
    found = {number for number in own if _runs_itself(migration, group, number, flow.calls[number])}
    pending = list(found)
    while pending:
        number = pending.pop()
        owner = flow.calls[number].owner
        if owner < 0:
            continue
        function = FunctionValue(flow.file_of_call(number), owner)
        is_given = _runs_an_argument(migration, group, number, function)
        for site in flow.called.get(function, ()):
            if site not in found and (not is_given or _passes_the_model(migration, group, site)):
                found.add(site)
                pending.append(site)
    return found


def _models(group: Group) -> set[Value]:
    """All that a group's model is, wrapped or not."""
    return {*group.raw, *(wrap.value for wrap in group.wraps)}


def _calls_by_model(migration: Migration) -> dict[int, list[int]]:
    """The calls that may run each model of any group, by the number of its value."""
    flow = migration.program.flow
    models = {flow.ids[value] for group in migration.groups.all for value in _models(group) if value in flow.ids}
    found: dict[int, list[int]] = {}
    for number, call in enumerate(flow.calls):
        run = (flow.points_to[call.function] if call.function != NOTHING else None) or set()
        if call.method is not None and call.method not in _RUNS:
            fields = [flow.fields.get((receiver, call.method)) for receiver in run]
            run = set().union(*(flow.points_to[field] or () for field in fields if field is not None))
        for value in run & models:
            found.setdefault(value, []).append(number)
    return found


def _runs_itself(migration: Migration, group: Group, number: int, call: Call) -> bool:
    """``model(x)``, ``model.generate(x)``; where little is known of the receiver, its name has to say model."""
    values = migration.program.flow.values_of(call.function)
    if call.method is not None and call.method not in _RUNS:
        values = [held for value in values for held in migration.program.attribute(value, call.method)]
    values = [value for value in values if of_group(group, value)]
    if not values:
        return False
    _, node = migration.program.call_node(number)
    receiver = node.func.value if call.method in _RUNS and isinstance(node.func, ast.Attribute) else node.func
    return means_a_model(values, last_name(receiver))


def _runs_an_argument(migration: Migration, group: Group, number: int, function: FunctionValue) -> bool:
    """Whether the model that a call runs is a parameter of the function around it."""
    view, node = migration.program.call_node(number)
    facts = migration.program.files[function.file].functions[function.index]
    parameters = {name for name, _ in (*facts.positional, *facts.keyword_only)} - {"self", "cls"}
    places = [node.func, *node.args, *(keyword.value for keyword in node.keywords)]
    roots = [place for place in places if any(of_group(group, value) for value in view.values(place))]
    names = {inner.id for place in roots or [node.func] for inner in ast.walk(place) if isinstance(inner, ast.Name)}
    return bool(names) and names <= parameters


def _passes_the_model(migration: Migration, group: Group, site: int) -> bool:
    """Whether an argument of a call may be the model of the group: not a plain one that is made for the call."""
    call = migration.program.flow.calls[site]
    if any(name is None for name, _ in call.keywords) or call.starred >= 0:
        return True
    passed = _passed(migration, group, site)
    if not any(passed):
        return False
    finder = migration.once("guards", None, lambda: GuardFinder(migration.program))
    view, node = migration.program.call_node(site)
    arguments = [*node.args, *(keyword.value for keyword in node.keywords)]
    return not all(
        is_made_here(migration, finder, view, argument, group)
        for argument, is_passed in zip(arguments, passed, strict=True)
        if is_passed
    )


def _passed(migration: Migration, group: Group, site: int) -> list[bool]:
    """For each argument of a call, whether it may be the model of the group by its values."""
    flow, call = migration.program.flow, migration.program.flow.calls[site]
    return [
        any(of_group(group, value) for value in migration.program.elements(flow.values_of(variable)))
        for variable in (*call.arguments, *(variable for _, variable in call.keywords))
    ]


def of_group(group: Group, value: Value) -> bool:
    """Whether a value is the model of a group, wrapped or not."""
    if value in group.raw:
        return True
    return isinstance(value, (Wrapped, Annotated)) and any(wrap.value == value for wrap in group.wraps)
