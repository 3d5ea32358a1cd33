"""How reads of state are written: ``get_model_state_dict`` and ``get_optimizer_state_dict``.

Gathering is collective, so a read behind a rank guard moves in front of it and leaves the name of its result in
its place.
"""

from __future__ import annotations

import ast
from collections.abc import Sequence
from dataclasses import dataclass

from ..analysis.symbols import DDP
from ..migration import Migration
from ..ranks.evaluation import is_evaluated, reshard_lines
from ..ranks.front import condition_in_front
from ..ranks.guards import GuardFinder
from ..rule import Outcome
from ..text.dedent import unwraps
from ..text.generated import call_text, replaced_call
from ..text.patches import Old, Part, Patch
from ..training.in_scope import inside_data_parallel
from ..view import FileView
from .lifting import new_arguments
from .plans import ReadPlan, StateOptions, gathered_name, plan_of
from .reads import StateRead, reads

NewCall = tuple[str, list[Sequence[Part]]]
"""The name of a function, and its arguments."""

_MODULE = "torch.distributed.checkpoint.state_dict"
OPTIONS = f"{_MODULE}.StateDictOptions"
GET_MODEL = f"{_MODULE}.get_model_state_dict"
SET_MODEL = f"{_MODULE}.set_model_state_dict"
GET_OPTIMIZER = f"{_MODULE}.get_optimizer_state_dict"
SET_OPTIMIZER = f"{_MODULE}.set_optimizer_state_dict"


def write_read(migration: Migration, read: StateRead, plan: ReadPlan, outcome: Outcome) -> None:
    """Adds the patches of a read to its outcome."""
    view = read.view
    why = "state is gathered by the helpers of DCP"
    if read.is_argument:
        _write_argument(migration, read, plan, outcome)
        return
    if plan.guard is None:
        name, arguments = read_call(migration, read, plan, outcome, read.call)
        if read.prefixed:
            parts = _with_prefix(view, read.call, name, arguments)
        else:
            parts = replaced_call(view, read.call, name, arguments, unwraps(view, read.call))
        own = own_state(migration, read, plan.fresh, outcome)
        statement = view.statement(read.call)
        stands_alone = isinstance(statement, (ast.Assign, ast.Return)) and statement.value is read.call
        if own is not None and read.may_be_ddp and stands_alone:
            head = Old(view.source.span(statement)[0], view.source.span(read.call)[0])
            lines = in_branches(own, (head,), parts, view.indent(statement))
            outcome.patches.append(view.replace(statement, lines, why))
        elif own is not None:
            choice = (*parts, " if ", *own.otherwise, " else ", *own.value)
            outcome.patches.append(view.replace(read.call, in_brackets(view, read.call, choice), why))
        else:
            outcome.patches.append(view.replace(read.call, parts, why))
        if needs_reshard(migration, read):
            place, model = view.statement(read.call), part_of(view, read.model)
            lines = reshard_lines(migration, outcome, view, model, view.indent(place), read.call)
            outcome.patches.append(view.insert_before(place, lines, "the optimizer knows the shards only"))
        return
    outcome.patches.append(view.replace(read.call, plan.name, why))
    outcome.patches.append(hoisted(migration, read, plan, outcome))


def _write_argument(migration: Migration, read: StateRead, plan: ReadPlan, outcome: Outcome) -> None:
    """Hands the gathered state to ``save_pretrained``."""
    view, place = read.view, read.statement if plan.guard is None else plan.guard.statement
    name = plan.name or gathered_name(migration, view, read.call, read.kind, read.model)
    outcome.patches.extend(new_arguments(view, read.call, [f"state_dict={name}"], "the state is gathered before"))
    if plan.guard is not None:
        outcome.patches.append(hoisted(migration, read, plan, outcome))
        return
    indent = view.indent(place)
    function, arguments = read_call(migration, read, plan, outcome, read.call)
    call = call_text(function, arguments, indent, len(indent) + len(name) + 3)
    parts = (f"{indent}{name} = ", *call, "\n")
    outcome.patches.append(view.insert_before(place, parts, "the state is gathered before"))


def read_call(
    migration: Migration, read: StateRead, plan: ReadPlan, outcome: Outcome, node: ast.AST
) -> NewCall:
    """Function name and arguments of the new call."""
    view = read.view
    name = migration.use(outcome, view, GET_MODEL if read.kind == "model" else GET_OPTIMIZER, node)
    arguments: list[Sequence[Part]] = [(part_of(view, read.model),)]
    if read.kind == "optimizer":
        if isinstance(read.model, str):
            arguments = [(inside_data_parallel(view, node, read.model),)]
        arguments.append((part_of(view, read.optimizer),))
    options = options_text(migration, plan.options, outcome, view, node)
    if options:
        arguments.append((f"options={options}",))
    return name, arguments


@dataclass(frozen=True)
class OwnState:
    """State that is taken as it was before: of a model under DDP, and of an optimizer without a step."""

    value: tuple[Part, ...]
    test: tuple[Part, ...]
    otherwise: tuple[Part, ...]
    """The opposite of the test."""


def own_state(migration: Migration, read: StateRead, is_fresh: bool, outcome: Outcome) -> OwnState | None:
    """What a read stays for models that stay under DDP, and for optimizers that have made no step yet."""
    view = read.view
    receiver = part_of(view, read.optimizer if read.kind == "optimizer" else read.model)
    tests: list[Part] = ["not ", receiver, ".state"] if is_fresh else []
    others: list[Part] = [receiver, ".state"] if is_fresh else []
    if read.may_be_ddp:
        ddp = ("isinstance(", part_of(view, read.model), f", {migration.use(outcome, view, DDP, read.call)})")
        tests += [*([" or "] if tests else []), *ddp]
        others += [*([" and "] if others else []), "not ", *ddp]
    return OwnState((receiver, ".state_dict()"), tuple(tests), tuple(others)) if tests else None


def in_branches(own: OwnState, head: Sequence[Part], gathered: Sequence[Part], indent: str) -> list[Part]:
    """The choice between the two kinds of state as a statement, which ``head`` begins on either side."""
    inner = f"\n{indent}    "
    deeper = [part.replace("\n", "\n    ") if isinstance(part, str) else part for part in gathered]
    return ["if ", *own.test, f":{inner}", *head, *own.value, f"\n{indent}else:{inner}", *head, *deeper]


def named_state(
    migration: Migration, read: StateRead, is_fresh: bool, outcome: Outcome, name: str, indent: str, call: NewCall
) -> list[Part]:
    """The lines that give gathered state a name."""
    head = f"{name} = "
    gathered = call_text(*call, indent, len(indent) + len(head))
    own = own_state(migration, read, is_fresh, outcome)
    if own is None:
        return [indent, head, *gathered, "\n"]
    if read.may_be_ddp:
        return [indent, *in_branches(own, (head,), gathered, indent), "\n"]
    return [indent, head, *gathered, " if ", *own.otherwise, " else ", *own.value, "\n"]


def in_brackets(view: FileView, node: ast.expr, parts: Sequence[Part]) -> tuple[Part, ...]:
    """A conditional expression in the place of a call: bracketed where something follows or precedes it."""
    parent = view.parents[node]
    stands_free = isinstance(parent, (ast.Assign, ast.AnnAssign, ast.Return, ast.Expr, ast.Dict, ast.keyword)) or (
        isinstance(parent, ast.Call) and node in parent.args
    )
    return tuple(parts) if stands_free else ("(", *parts, ")")


def needs_reshard(migration: Migration, read: StateRead) -> bool:
    """Whether whole parameters may be registered where the state of an optimizer is read.

    They are after an evaluation, and get_optimizer_state_dict then raises KeyError. Taking the state of the model
    puts them back, so nothing is needed where that comes first.
    """
    if read.kind != "optimizer" or read.group is None or not is_evaluated(migration, read.group):
        return False
    view = read.view
    start = view.source.span(read.call)
    return not any(
        other.kind == "model"
        and other.view is view
        and other.group is read.group
        and view.function(other.call) is view.function(read.call)
        and view.source.span(other.call) < start
        for other in reads(migration)
    )


def part_of(view: FileView, node: ast.expr | Part | None) -> Part:
    """A model or optimizer as a part of a patch: kept text, or text that was made up."""
    if isinstance(node, ast.expr):
        return view.keep(node)
    return node if isinstance(node, Old) else str(node)


def _with_prefix(view: FileView, node: ast.AST, name: str, arguments: list[Sequence[Part]]) -> list[Part]:
    """A comprehension over the gathered state that gives the keys DDP's prefix back."""
    indent = view.source.indent_at(view.source.span(node)[0])
    inner = indent + "    "
    head = "for name, tensor in "
    call = call_text(name, arguments, inner, len(inner) + len(head), len(".items()"))
    return [f'{{\n{inner}f"module.{{name}}": tensor\n{inner}{head}', *call, f".items()\n{indent}}}"]


def options_text(migration: Migration, options: StateOptions, outcome: Outcome, view: FileView, node: ast.AST) -> str:
    """``StateDictOptions(…)``, the variable that holds it, or nothing where the defaults are meant."""
    if options.name is not None:
        return options.name
    flags: list[str] = []
    if options.full:
        flags.append("full_state_dict=True")
    elif options.full_if is not None:
        flags.append(f"full_state_dict={options.full_if}")
    if options.cpu_offload:
        flags.append("cpu_offload=True")
    elif options.condition is not None:
        flags.append(f"cpu_offload={options.condition}")
    if not flags:
        return ""
    return f"{migration.use(outcome, view, OPTIONS, node)}({', '.join(flags)})"


def hoisted(migration: Migration, read: StateRead, plan: ReadPlan, outcome: Outcome) -> Patch:
    """The gathering of every read behind one guard, once for all of them, in front of it."""
    assert plan.guard is not None
    finder = migration.once("guards", None, lambda: GuardFinder(migration.program))
    view, place = read.view, plan.guard.statement
    together = [
        (other, other_plan)
        for other in (*reads(migration), *((read,) if read.is_argument else ()))
        if other.view is view and other.group is read.group
        for other_plan in (plan_of(migration, other),)
        if other_plan.guard is not None and other_plan.guard.statement is place and not other_plan.problem
    ]
    together.sort(key=lambda pair: pair[0].kind)  # the model first: it puts whole parameters back to shards
    blocks: list[tuple[str, list[Part]]] = []
    indent = view.indent(place)
    written: set[str] = set()
    for other, other_plan in together:
        if other_plan.name in written:
            continue
        written.add(other_plan.name)
        assert other_plan.guard is not None
        condition = condition_in_front(finder, view, other_plan.guard, other.call)
        if not blocks or blocks[-1][0] != condition:
            blocks.append((condition, []))
        inner = indent + ("    " if condition else "")
        call = read_call(migration, other, other_plan, outcome, place)
        if together[0][0].kind == "optimizer" and needs_reshard(migration, other):
            blocks[-1][1].extend(reshard_lines(migration, outcome, view, part_of(view, other.model), inner, place))
        blocks[-1][1].extend(named_state(migration, other, other_plan.fresh, outcome, other_plan.name, inner, call))
        if other.prefixed:
            named = f'{{f"module.{{name}}": tensor for name, tensor in {other_plan.name}.items()}}'
            blocks[-1][1].append(f"{inner}{other_plan.name} = {named}\n")
    parts: list[Part] = []
    for condition, lines in blocks:
        if condition:
            parts.append(f"{indent}if {condition}:\n")
        parts.extend(lines)
    return view.insert_before(place, parts, "gathering is collective: it moves in front of the rank guard")
