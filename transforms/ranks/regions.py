"""The part of a guarded block that all ranks have to run: from its start to the last statement that touches the model.

Forwards need all ranks; ``model.train()`` has to follow ``model.eval()`` on each of them.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass

from ..migration import Migration
from ..state.reads import reads
from ..text.dedent import holds_long_strings
from ..training.conditions import negated_text
from ..training.passes import leaves_early
from ..view import FileView
from .evaluation import runs_of
from .front import is_agreed
from .guards import Guard, GuardFinder
from .modes import STAYS, changes_mode, stays_in_evaluation
from .outliving import bound_in, outliving
from .presence import missing_somewhere
from .reports import Reports, reports_in
from .tells import MEETS, tells_of


@dataclass(frozen=True, eq=False)
class Region:
    """Statements for all ranks, and those of them that only report what was computed."""

    view: FileView
    guard: Guard
    selecting: list[ast.expr]
    """The parts of the guard's condition that are about the rank."""
    agreed: list[ast.expr]
    """The others, which all ranks find alike."""
    statements: list[ast.stmt]
    rest: list[ast.stmt]
    """What follows in the block and stays behind the guard."""
    reports: Reports

    @property
    def is_dedented(self) -> bool:
        """Whether nothing is left of the guard around the block."""
        return self.guard.kind == "if" and not self.agreed

    @property
    def keep(self) -> str:
        """The condition under which a rank passed the guard, as far as it is about the rank."""
        if self.guard.kind == "exit":
            return negated_text(self.view, self.selecting)
        return " and ".join(self.view.text(part) for part in self.selecting)

    @property
    def leave(self) -> str:
        """The opposite."""
        if self.guard.kind == "exit":
            return " and ".join(self.view.text(part) for part in self.selecting)
        return negated_text(self.view, self.selecting)


def region_of(migration: Migration, finder: GuardFinder, guard: Guard) -> Region | str:
    """What all ranks have to run of the block behind a guard; a reason where they cannot."""
    view = guard.view
    block = _block_behind(view, guard)
    if isinstance(block, str):
        return block
    assert guard.test is not None
    joined = isinstance(guard.test, ast.BoolOp) and isinstance(guard.test.op, ast.And) and guard.kind == "if"
    operands = guard.test.values if isinstance(guard.test, ast.BoolOp) and joined else [guard.test]
    selecting = [operand for operand in operands if finder.conditions.selects_ranks(view, operand)]
    agreed = [operand for operand in operands if operand not in selecting]
    doubtful = next((operand for operand in agreed if not is_agreed(operand)), None)
    if doubtful is not None:
        return f"ranks may differ about `{view.text(doubtful)}`"
    runs: set[ast.AST] = {
        migration.program.call_node(number)[1] for group in migration.groups.all for number in runs_of(migration, group)
    }

    def touches(statement: ast.stmt) -> bool:
        return any(node in runs for node in ast.walk(statement)) or changes_mode(migration, view, [statement])

    touching = [place for place, statement in enumerate(block) if touches(statement)]
    if not touching:
        return "the guard is one of several alternatives"
    statements, rest = block[: touching[-1] + 1], block[touching[-1] + 1 :]
    region = Region(view, guard, selecting, agreed, statements, rest, Reports())
    problem = _problem(migration, finder, region, runs) or outliving(finder, view, guard, statements, rest)
    if problem:
        return problem
    reports_in(migration, finder, region.reports, view, statements, region.keep, touches)
    if region.reports.problem:
        return region.reports.problem
    moved = [*(s for run in region.reports.runs for s in run), *(block if region.is_dedented else ())]
    moved += rest if guard.kind == "if" else []
    if any(holds_long_strings(view, statement) for statement in moved):
        return "a string over several lines stands in what would be indented anew"
    return region


def _block_behind(view: FileView, guard: Guard) -> list[ast.stmt] | str:
    """The statements that a guard lets only some ranks run."""
    statement = guard.statement
    if not isinstance(statement, ast.If) or guard.test is not statement.test or not view.stands_alone(statement):
        return "the guard is one of several alternatives"
    if guard.kind == "if" and not guard.negated and not statement.orelse:
        on_lines_of_their_own = view.line(statement.body[0]) > (statement.test.end_lineno or 0)
        return statement.body if on_lines_of_their_own else "the guard shares its line with what it guards"
    if guard.kind != "exit":
        return "the guard is one of several alternatives"
    if len(statement.body) != 1 or not isinstance(statement.body[0], ast.Return):
        return "the guard does more than return"
    block, place = view.block_of(statement)
    if not isinstance(view.parents[statement], ast.FunctionDef):
        return "the guard stands in a block of its own"
    return block[place + 1 :]


def _problem(migration: Migration, finder: GuardFinder, region: Region, runs: set[ast.AST]) -> str:
    view, guard = region.view, region.guard
    inside = {node for statement in region.statements for node in ast.walk(statement)}
    if any(read.call in inside for read in reads(migration)):
        return "a state dict is taken in between"
    if any(_returns(statement) for statement in region.statements) or leaves_early(region.statements):
        return "control may leave before the last statement that needs all ranks"
    bound = bound_in(region.statements)
    if stays_in_evaluation(migration, view, region.statements):
        return STAYS
    if any(MEETS in tells_of(finder, view, statement) for statement in region.statements):
        return "ranks wait for each other in between"
    if any(bound & view.names_in(operand) for operand in region.selecting):
        return "what all ranks have to run changes the condition of the guard"
    for statement in region.statements:
        missing = missing_somewhere(finder, view, statement, bound)
        if missing:
            return f"{missing} exists on some ranks only"
    for call in runs & inside:
        if len(finder.around(view, call)) > 1:
            return "further conditions about the rank stand around it"
        doubtful = _doubtful(view, guard, call)
        if doubtful is not None:
            return f"ranks may differ about `{view.text(doubtful)}`"
    return ""


def _doubtful(view: FileView, guard: Guard, call: ast.AST) -> ast.expr | None:
    """A condition that decides whether, or how often, a call runs, and that ranks may find differently."""
    child = call
    for ancestor in view.ancestors(call):
        if ancestor is guard.statement or isinstance(ancestor, (ast.FunctionDef, ast.AsyncFunctionDef)):
            return None
        tests: list[ast.expr] = []
        if isinstance(ancestor, (ast.If, ast.IfExp, ast.While)) and child is not ancestor.test:
            tests.append(ancestor.test)
        if isinstance(ancestor, (ast.For, ast.While)):
            branches = [inner for inner in ast.walk(ancestor) if isinstance(inner, ast.If)]
            tests += [
                inner.test for inner in branches if any(isinstance(n, (ast.Break, ast.Continue)) for n in ast.walk(inner))
            ]
        doubtful = next((test for test in tests if not is_agreed(test)), None)
        if doubtful is not None:
            return doubtful
        child = ancestor
    return None


def _returns(statement: ast.stmt) -> bool:
    return any(isinstance(node, (ast.Return, ast.Yield, ast.YieldFrom)) for node in ast.walk(statement))
