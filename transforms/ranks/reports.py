"""Statements that only report: they write, print or log what was computed, and stay with the ranks that did so."""

from __future__ import annotations

import ast
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from ..migration import Migration
from ..training.passes import leaves_early
from ..view import FileView
from .guards import GuardFinder
from .outliving import bound_in
from .tells import PRINTS, WRITES, tells_of


@dataclass
class Reports:
    """The reports among statements."""

    runs: list[list[ast.stmt]] = field(default_factory=list)
    """Neighbours together."""
    loosened: list[tuple[ast.If, list[ast.expr]]] = field(default_factory=list)
    """Conditions about the rank that hold where they stand, but must not on the other ranks, and what remains of them."""
    prints: bool = False
    """Whether something else prints, too."""
    problem: str = ""


def reports_in(
    migration: Migration,
    finder: GuardFinder,
    reports: Reports,
    view: FileView,
    block: Sequence[ast.stmt],
    keep: str,
    touches: Callable[[ast.stmt], bool],
) -> None:
    """Collects the reports in a block; ``keep`` is the condition about the rank that held in it."""
    previous: ast.stmt | None = None
    for statement in block:
        told = tells_of(finder, view, statement)
        if isinstance(statement, ast.If) and finder.conditions.selects_ranks(view, statement.test):
            _loosen(finder, reports, view, statement, keep)
            if reports.loosened and reports.loosened[-1][0] is statement:
                reports_in(migration, finder, reports, view, statement.body, keep, touches)
        elif told and _only_reports(view, statement, touches):
            if previous is not None and reports.runs and reports.runs[-1][-1] is previous:
                reports.runs[-1].append(statement)
            else:
                reports.runs.append([statement])
        elif told:
            _inside(migration, finder, reports, view, statement, keep, touches)
        previous = statement


def _inside(
    migration: Migration,
    finder: GuardFinder,
    reports: Reports,
    view: FileView,
    statement: ast.stmt,
    keep: str,
    touches: Callable[[ast.stmt], bool],
) -> None:
    """Looks for reports inside a statement that does more."""
    bodies: list[list[ast.stmt]] = [getattr(statement, name, []) for name in ("body", "orelse", "finalbody")]
    inner = {node for body in bodies for part in body for node in ast.walk(part)}
    heads = [child for child in ast.iter_child_nodes(statement) if child not in inner]
    told = {kind for head in heads for kind in tells_of(finder, view, head)}
    if WRITES in told or (isinstance(statement, ast.Try) and statement.handlers):
        reports.problem = f"line {view.line(statement)} writes files, which ranks would do at once"
    reports.prints = reports.prints or PRINTS in told
    for body in bodies:
        reports_in(migration, finder, reports, view, body, keep, touches)


def _loosen(finder: GuardFinder, reports: Reports, view: FileView, statement: ast.If, keep: str) -> None:
    """A condition about the rank inside: what it computes for others must be computed on all ranks."""
    inside = set(ast.walk(statement))
    scope = view.function(statement) or view.tree
    used = {n.id for n in ast.walk(scope) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load) and n not in inside}
    if not bound_in([*statement.body, *statement.orelse]) & used:
        return
    test = statement.test
    operands = test.values if isinstance(test, ast.BoolOp) and isinstance(test.op, ast.And) else [test]
    remaining = [operand for operand in operands if not finder.conditions.selects_ranks(view, operand)]
    selecting = [view.text(operand) for operand in operands if operand not in remaining]
    if statement.orelse or not remaining or selecting != [keep]:
        reports.problem = f"line {view.line(statement)} computes on some ranks what all of them would go on with"
        return
    reports.loosened.append((statement, remaining))


def _only_reports(view: FileView, statement: ast.stmt, touches: Callable[[ast.stmt], bool]) -> bool:
    """Whether nothing but the report would be missing on the other ranks."""
    if touches(statement) or not view.stands_alone(statement):
        return False
    if isinstance(statement, ast.Expr):
        return True
    if not isinstance(statement, (ast.If, ast.For, ast.With)) or leaves_early([statement]):
        return False
    inside = set(ast.walk(statement))
    scope = view.function(statement) or view.tree
    elsewhere = {n.id for n in ast.walk(scope) if isinstance(n, ast.Name) and n not in inside}
    return not bound_in([statement]) & elsewhere
