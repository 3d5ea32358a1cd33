"""Places that a guard leads to now and then only, as the rank behind the guard alone finds out: in each step, or by a loss."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from typing import cast

from .backwards import is_at_each_step
from .conditions import is_rank_condition
from .file import File
from .known_conditions import parts_that_hold
from .measured import lets_some_ranks_in

Way = Sequence[tuple[File, ast.AST]]
"""How a guard leads to a place: the call in the guard's function, those in the functions called, and the place itself."""
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)


def statements_to_ask_at(file: File, guard: ast.stmt, ways: Sequence[Way]) -> list[tuple[File, ast.stmt]]:
    """The statements in front of which what the ways lead to is asked for; none where some way is gone with every step."""
    if not ways or not (is_at_each_step(file, guard) or lets_some_ranks_in(file, guard)):
        return []
    outside = None if _asks_for_more(file, guard) else guard
    found: dict[ast.stmt, File] = {}
    for way in ways:
        rare = next(_conditional(outside, way), None)
        if rare is None:
            return []
        found[rare[1]] = rare[0]
    first: dict[int, ast.stmt] = {}
    for statement in sorted(found, key=lambda s: s.lineno):
        first.setdefault(id(found[statement].block_of(statement)[0]), statement)
    outer = [s for s in first.values() if not any(other in found[s].ancestors(s) for other in first.values())]
    return [(found[statement], statement) for statement in outer]


def _asks_for_more(file: File, guard: ast.stmt) -> bool:
    """Whether a guard's test is about more than the rank."""
    return isinstance(guard, ast.If) and any(not is_rank_condition(file, part) for part in parts_that_hold(guard.test, True))


def _conditional(guard: ast.stmt | None, way: Way) -> Iterator[tuple[File, ast.stmt]]:
    """The statements of a way that a test stands around, outermost first."""
    for step, (file, node) in enumerate(way):
        statement = file.statement(node)
        around = list(_inside_of(file, statement, guard if step == 0 else None))
        while around and isinstance(around[0], ast.If) and around[0].orelse == [statement] and isinstance(statement, ast.If):
            statement = cast(ast.stmt, around.pop(0))  # in front of an elif nothing can stand
        if statement is guard:
            continue
        blocks = [file.block_of(one) for one in (statement, *around) if isinstance(one, ast.stmt)]
        if any(isinstance(one, ast.If) for one in around) or any(_is_left(file, s) for block, at in blocks for s in block[:at]):
            yield file, statement


def _is_left(file: File, statement: ast.stmt) -> bool:
    """Whether a block is left at a statement by what is no test of the rank."""
    leaves = isinstance(statement, ast.If) and isinstance(statement.body[-1], (ast.Return, ast.Continue, ast.Break))
    return leaves and not is_rank_condition(file, statement.test)  # type: ignore[attr-defined]


def _inside_of(file: File, statement: ast.stmt, guard: ast.stmt | None) -> Iterator[ast.AST]:
    """What stands around a statement, in the guard or in its function."""
    for around in file.ancestors(statement):
        if around is guard or isinstance(around, _FUNCTIONS):
            return
        yield around
