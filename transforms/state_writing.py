"""How reads of state are written: ``get_model_state_dict`` and ``get_optimizer_state_dict``.

Gathering is collective, so a read behind a rank guard moves in front of it and leaves the name of its result in
its place.
"""

from __future__ import annotations

import ast
from collections.abc import Sequence

from .dedent import unwraps
from .findings import Level
from .generated import call_text, replaced_call
from .migration import Migration
from .patches import Part, Patch
from .rank_guards import GuardFinder
from .rule import Outcome
from .state_plans import ReadPlan, StateOptions, bound_between, plan_of
from .state_reads import StateRead, reads
from .view import FileView

_MODULE = "torch.distributed.checkpoint.state_dict"
OPTIONS = f"{_MODULE}.StateDictOptions"
GET_MODEL = f"{_MODULE}.get_model_state_dict"
SET_MODEL = f"{_MODULE}.set_model_state_dict"
GET_OPTIMIZER = f"{_MODULE}.get_optimizer_state_dict"
SET_OPTIMIZER = f"{_MODULE}.set_optimizer_state_dict"


def optimizer_outcome(migration: Migration, read: StateRead) -> Outcome:
    """``optimizer.state_dict()`` becomes ``get_optimizer_state_dict``."""
    plan = plan_of(migration, read)
    if plan.problem:
        return Outcome(Level.MANUAL, plan.problem, plan.advice, holds=True)
    message = "the optimizer state is gathered from the shards; its keys are parameter names instead of numbers"
    if plan.guard is not None:
        message += ", on all ranks in front of the rank guard"
    outcome = Outcome(Level.REVIEW if plan.notes else Level.SAFE, "; ".join([message, *plan.notes]))
    write_read(migration, read, plan, outcome)
    return outcome


def write_read(migration: Migration, read: StateRead, plan: ReadPlan, outcome: Outcome) -> None:
    """Adds the patches of a read to its outcome."""
    view = read.view
    why = "state is gathered by the helpers of DCP"
    if plan.guard is None:
        name, arguments = read_call(migration, read, plan, outcome, read.call)
        if read.prefixed:
            parts = _with_prefix(view, read.call, name, arguments)
        else:
            parts = replaced_call(view, read.call, name, arguments, unwraps(view, read.call))
        outcome.patches.append(view.replace(read.call, parts, why))
        return
    outcome.patches.append(view.replace(read.call, plan.name, why))
    outcome.patches.append(hoisted(migration, read, plan, outcome))


def read_call(
    migration: Migration, read: StateRead, plan: ReadPlan, outcome: Outcome, node: ast.AST
) -> tuple[str, list[Sequence[Part]]]:
    """Function name and arguments of the new call."""
    view = read.view
    name = migration.use(outcome, view, GET_MODEL if read.kind == "model" else GET_OPTIMIZER, node)
    arguments: list[Sequence[Part]] = [(_part(view, read.model),)]
    if read.kind == "optimizer":
        arguments.append((_part(view, read.optimizer),))
    options = options_text(migration, plan.options, outcome, view, node)
    if options:
        arguments.append((f"options={options}",))
    return name, arguments


def _part(view: FileView, node: ast.expr | str | None) -> Part:
    return view.keep(node) if isinstance(node, ast.expr) else str(node)


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
    view, place = read.view, plan.guard.statement
    together = [
        (other, other_plan)
        for other in reads(migration)
        if other.view is view and other.group is read.group
        for other_plan in (plan_of(migration, other),)
        if other_plan.guard is not None and other_plan.guard.statement is place and not other_plan.problem
    ]
    blocks: list[tuple[str, list[Part]]] = []
    indent = view.indent(place)
    written: set[str] = set()
    for other, other_plan in together:
        if other_plan.name in written:
            continue
        written.add(other_plan.name)
        condition = _condition(migration, other, other_plan)
        if not blocks or blocks[-1][0] != condition:
            blocks.append((condition, []))
        inner = indent + ("    " if condition else "")
        name, arguments = read_call(migration, other, other_plan, outcome, place)
        head = f"{inner}{other_plan.name} = "
        blocks[-1][1].extend((head, *call_text(name, arguments, inner, len(head)), "\n"))
        if other.prefixed:
            named = f'{{f"module.{{name}}": tensor for name, tensor in {other_plan.name}.items()}}'
            blocks[-1][1].append(f"{head}{named}\n")
    parts: list[Part] = []
    for condition, lines in blocks:
        if condition:
            parts.append(f"{indent}if {condition}:\n")
        parts.extend(lines)
    return view.insert_before(place, parts, "gathering is collective: it moves in front of the rank guard")


def _condition(migration: Migration, read: StateRead, plan: ReadPlan) -> str:
    """Under what condition the read behind the guard happens, where that is known in front of it; else empty."""
    finder = migration.once("guards", None, lambda: GuardFinder(migration.program))
    view, guard = read.view, plan.guard
    assert guard is not None
    conditions: list[str] = []
    child: ast.AST = read.call
    bound = bound_between(view, guard, read.call)
    for ancestor in view.ancestors(read.call):
        if isinstance(ancestor, ast.If) and child is not ancestor.test:
            negated = child in ancestor.orelse
            operands = ancestor.test.values if _is_and(ancestor.test) else [ancestor.test]
            for operand in operands:
                if finder.conditions.selects_ranks(view, operand) or (negated and len(operands) > 1):
                    continue
                if not _is_pure(operand) or view.names_in(operand) & bound:
                    continue
                text = view.text(operand)
                conditions.insert(0, f"not ({text})" if negated else _bracketed(operand, text, len(operands)))
        if ancestor is guard.statement or isinstance(ancestor, (ast.FunctionDef, ast.AsyncFunctionDef)):
            break
        child = ancestor
    return " and ".join(conditions)


def _is_and(test: ast.expr) -> bool:
    return isinstance(test, ast.BoolOp) and isinstance(test.op, ast.And)


def _bracketed(operand: ast.expr, text: str, operands: int) -> str:
    needs = isinstance(operand, (ast.BoolOp, ast.IfExp, ast.Lambda)) and operands == 1
    return f"({text})" if needs and not _is_and(operand) else text


def _is_pure(test: ast.expr) -> bool:
    """Whether an expression may be evaluated twice: no calls, nothing awaited or assigned."""
    return not any(
        isinstance(node, (ast.Call, ast.Await, ast.NamedExpr, ast.Yield, ast.YieldFrom, ast.Lambda)) for node in ast.walk(test)
    )


