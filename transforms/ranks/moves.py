"""Calls of the model behind a rank guard that all ranks can make instead, in front of it."""

from __future__ import annotations

import ast
from dataclasses import dataclass

from ..migration import Migration
from ..rule import Outcome
from ..text.patches import Part, Patch
from ..training.conditions import negated
from ..view import FileView
from .front import condition_in_front, left_out
from .guards import Guard, GuardFinder, bound_between
from .modes import STAYS, changes_mode, stays_in_evaluation
from .presence import missing_somewhere
from .tells import MEETS, PRINTS, WRITES, tells_of


@dataclass(frozen=True, eq=False)
class Move:
    """A statement that moves in front of a guard."""

    view: FileView
    statement: ast.stmt
    guard: Guard
    prints: bool
    """Whether every rank will now print what rank 0 printed."""


def move_of(migration: Migration, finder: GuardFinder, view: FileView, call: ast.Call) -> Move | str:
    """How a call gets in front of its guards; a reason where it cannot."""
    guards = finder.around(view, call)
    guard, statement = guards[0], view.statement(call)
    if any(g.kind != "if" or g.negated for g in guards) or finder.callers_guarded(view, call) is not None:
        return "the function around it runs on some ranks only"
    if not isinstance(guard.statement, ast.If) or guard.test is not guard.statement.test:
        return "the guard is one of several alternatives"
    if not isinstance(statement, (ast.Assign, ast.Expr)) or getattr(statement, "value", None) is not call:
        return "the call is part of a larger statement"
    used = view.names_in(call) - {call.func.id if isinstance(call.func, ast.Name) else ""}
    if used & bound_between(view, guard, statement):
        return "it needs something that is only made behind the guard"
    if not _is_first_to_touch(view, guard, statement, used):
        return "what comes before it behind the guard may matter to it"
    later = [node for node in ast.walk(guard.statement) if isinstance(node, ast.Call) and _follows(view, statement, node)]
    if changes_mode(migration, view, later):
        return "what follows it behind the guard puts the model into another mode"
    if stays_in_evaluation(migration, view, [call]):
        return STAYS
    if left_out(finder, view, guard, statement):
        return "ranks may differ about the condition behind the guard"
    missing = missing_somewhere(finder, view, call)
    if missing:
        return f"{missing} exists on some ranks only"
    tells = tells_of(finder, view, call)
    if WRITES in tells:
        return "it writes files, which ranks would do at once"
    if MEETS in tells:
        return "ranks wait for each other in it"
    return Move(view, statement, guard, PRINTS in tells)


def _follows(view: FileView, statement: ast.stmt, node: ast.AST) -> bool:
    return view.source.span(node)[0] > view.source.span(statement)[1]


def write_move(migration: Migration, finder: GuardFinder, move: Move, outcome: Outcome) -> None:
    """Puts the statement in front of the guard, with the random numbers of the other ranks left as they were."""
    view, guard, statement = move.view, move.guard, move.statement
    condition = condition_in_front(finder, view, guard, statement)
    indent = view.indent(guard.statement)
    inner = indent + ("    " if condition else "")
    fork = migration.use(outcome, view, "torch.random.fork_rng", statement)
    cuda = migration.use(outcome, view, "torch.cuda", statement)
    devices = view.free_name(statement, "devices")
    parts: list[Part] = [f"{indent}if {condition}:\n"] if condition else []
    parts += [
        f"{inner}# a forward needs all ranks; random numbers go on as if rank 0 alone had run it\n",
        f"{inner}{devices} = [{cuda}.current_device()] if {cuda}.is_available() else []\n",
        f"{inner}with {fork}({devices}, enabled=",
        *_elsewhere(finder, view, guard),
        f"):\n{inner}    ",
        view.keep(statement, inner + "    "),
        "\n",
    ]
    outcome.patches.append(view.insert_before(guard.statement, parts, "a forward needs all ranks"))
    outcome.patches.append(_taken_out(view, statement))


def _taken_out(view: FileView, statement: ast.stmt) -> Patch:
    block, _ = view.block_of(statement)
    start = view.line_start(statement)
    if len(block) > 1:
        return Patch(view.path, start, view.line_end(statement), (), "moved in front of the guard")
    end = view.source.span(statement)[1]
    return Patch(view.path, start, end, (view.indent(statement) + "pass",), "moved in front of the guard")


def _elsewhere(finder: GuardFinder, view: FileView, guard: Guard) -> tuple[Part, ...]:
    """A condition that holds on the ranks that the guard keeps out."""
    assert guard.test is not None
    test = guard.test
    operands = test.values if isinstance(test, ast.BoolOp) and isinstance(test.op, ast.And) else [test]
    selecting = [operand for operand in operands if finder.conditions.selects_ranks(view, operand)]
    if len(selecting) == 1:
        return negated(view, selecting[0])
    return ("not (" + " and ".join(view.text(operand) for operand in selecting) + ")",)


def _is_first_to_touch(view: FileView, guard: Guard, statement: ast.stmt, used: set[str]) -> bool:
    """Whether nothing behind the guard and before the statement mentions what it uses, ``model.eval()`` say."""
    start, end = view.source.span(guard.statement)[0], view.source.span(statement)[0]
    around = {statement, *view.ancestors(statement)}
    for node in ast.walk(guard.statement):
        if not isinstance(node, ast.stmt) or node in around or not start < view.source.span(node)[0] < end:
            continue
        for inner in ast.walk(node):
            touched: ast.expr | None = None
            if isinstance(inner, ast.Call) and isinstance(inner.func, ast.Attribute):
                touched = inner.func.value
            elif isinstance(inner, (ast.Attribute, ast.Subscript)) and isinstance(inner.ctx, ast.Store):
                touched = inner
            if touched is not None and view.names_in(touched) & used:
                return False
    return True
