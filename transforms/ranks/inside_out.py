"""A rank guard turned inside out: all ranks run the model, and what reports the result stays behind the guard."""

from __future__ import annotations

import ast

from ..migration import Migration
from ..rule import Outcome
from ..text.patches import Old, Part, Patch
from ..view import FileView
from .regions import Region

_WHY = "forwards need all ranks"


def turn_inside_out(migration: Migration, region: Region, outcome: Outcome) -> None:
    """Adds the patches that let all ranks run a region."""
    view, guard = region.view, region.guard
    statement = guard.statement
    assert isinstance(statement, ast.If)
    first, last = region.statements[0], region.statements[-1]
    states = view.free_name(first, "random_states")
    get, cuda = migration.use(outcome, view, "torch.get_rng_state", first), migration.use(outcome, view, "torch.cuda", first)
    put = migration.use(outcome, view, "torch.set_rng_state", first)
    indent = view.indent(statement)
    inner = indent if guard.kind == "exit" or not region.agreed else view.indent(first)
    saved = (
        "# forwards need all ranks; the others go on with the random numbers that they have now\n"
        f"{inner}{states} = [{get}(), {cuda}.get_rng_state() if {cuda}.is_available() else None]\n"
    )
    old = view.indent(first)
    restored = (
        f"{old}    {put}({states}[0])\n{old}    if {cuda}.is_available():\n{old}        {cuda}.set_rng_state({states}[1])\n"
    )
    for run in region.reports.runs:
        _keep_behind(view, run, region.keep, outcome)
    for branch, remaining in region.reports.loosened:
        text = " and ".join(view.text(operand) for operand in remaining)
        outcome.patches.append(view.replace(branch.test, text, _WHY))
    if guard.kind == "exit":
        leaving = f"{old}    {view.text(statement.body[0])}\n" if region.rest else ""
        follows = "\n" if region.rest and not _stands_apart(view, region.rest[0]) else ""
        lines = f"\n{old}if {region.leave}:\n{restored}{leaving}{follows}"
        outcome.patches.append(view.replace(statement, saved.rstrip("\n"), _WHY))
        outcome.patches.append(view.insert_after(last, lines, _WHY))
        return
    if region.rest:
        _keep_behind(view, region.rest, region.keep, outcome, f"{old}else:\n{restored}")
    else:
        outcome.patches.append(view.insert_after(last, f"{old}if {region.leave}:\n{restored}", _WHY))
    if region.agreed:
        text = " and ".join(view.text(operand) for operand in region.agreed)
        outcome.patches.append(view.replace(statement.test, text, _WHY))
        outcome.patches.append(view.insert_before(first, f"{inner}{saved}", _WHY))
        return
    body: list[Part] = [*_comment(view, statement, indent), saved]
    head = view.source.line_starts[statement.test.end_lineno or statement.lineno]
    body.append(Old(head, view.line_end(statement.body[-1]), indent))
    start = view.source.span(statement)[0]
    outcome.patches.append(Patch(view.path, start, view.line_end(statement), tuple(body), _WHY))


def _stands_apart(view: FileView, statement: ast.stmt) -> bool:
    """Whether an empty line stands above a statement."""
    line = view.source.position(view.line_start(statement))[0]
    starts = view.source.line_starts
    return line > 1 and not view.source.text[starts[line - 2] : starts[line - 1]].strip()


def _comment(view: FileView, statement: ast.If, indent: str) -> list[Part]:
    """The comment behind the head of a block, as a line of its own."""
    end = view.source.span(statement.test)[1]
    _, mark, comment = view.source.line_of(end)[view.source.position(end)[1] - 1 :].rstrip().partition("#")
    return [f"#{comment}\n{indent}"] if mark else []


def _keep_behind(view: FileView, statements: list[ast.stmt], condition: str, outcome: Outcome, after: str = "") -> None:
    """Puts neighbouring statements behind a condition."""
    indent = view.indent(statements[0])
    start, end = view.line_start(statements[0]), view.line_end(statements[-1])
    kept = Old(view.source.span(statements[0])[0], end, indent + "    ")
    parts: tuple[Part, ...] = (f"{indent}if {condition}:\n{indent}    ", kept, after)
    outcome.patches.append(Patch(view.path, start, end, parts, "what reports stays with the ranks that did so"))
