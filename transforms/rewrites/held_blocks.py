"""Statements inside of a context: in a ``with`` block, or between the two lines that enter and leave it."""

from __future__ import annotations

import ast
from collections.abc import Callable, Sequence

import libcst as cst

from ..queries.early_leaves import all_leave
from ..queries.file import File
from ..queries.ways_out import gives_what_is_there, is_caught_further_out, ways_out
from .changes import Change, Statement, insert_after, insert_before, replace_statement
from .templates import statements

_WIDEST = 120
_MOVED = 6
"""How many lines a block may move to the right: a diff in which more are the same shows nothing."""
_LEAVES = 2
"""In how many places at most the context is left: each is a line."""


def in_context(file: File, held: list[ast.stmt], context: str, given: Sequence[str]) -> list[Change]:
    """Puts the last statements of a block, or one statement, into ``with context(given):``."""
    kept: list[Statement] = []

    def keep(node):
        kept.append(node)
        return []

    def close(node):
        first, *others = [*kept, node]
        body = [first.with_changes(leading_lines=[]), *others]
        (block,) = statements(_lines(f"with {context}", given, ":", held[0]) + "\n    pass\n")
        inner = getattr(node, "body", None)
        indent = inner.indent if isinstance(inner, cst.IndentedBlock) else None  # files may have several
        return [block.with_changes(leading_lines=first.leading_lines, body=cst.IndentedBlock(body, indent=indent))]

    return [*(replace_statement(file, s, keep) for s in held[:-1]), replace_statement(file, held[-1], close)]


def in_context_behind(file: File, held: ast.If, tests: tuple[str, str], context: str, given: Sequence[str]) -> list[Change]:
    """``if outer and inner:`` as ``if outer:`` around the context, and in that ``if inner:``."""

    def in_block(guarded: Statement, indent: str | None) -> Sequence[Statement]:
        (block,) = statements(f"{_lines(f'with {context}', given, ':', held)}\n    pass\n")
        return [block.with_changes(body=cst.IndentedBlock([guarded], indent=indent))]

    return [_parted(file, held, tests, in_block)]


def parted(file: File, guard: ast.If, tests: tuple[str, str], between: Callable[[], Sequence[Statement]]) -> Change:
    """``if outer and inner:`` as ``if outer:`` around some statements, and behind them ``if inner:``."""
    return _parted(file, guard, tests, lambda guarded, _: [*between(), guarded])


def _parted(
    file: File, guard: ast.If, tests: tuple[str, str], inside: Callable[[Statement, str | None], Sequence[Statement]]
) -> Change:
    outer, inner = tests

    def split(node):
        block = node.body
        indent = block.indent if isinstance(block, cst.IndentedBlock) else None
        (new,) = statements(f"if {outer}:\n    pass\n")
        (guarded,) = statements(f"if {inner}:\n    pass\n")
        body = inside(guarded.with_changes(body=block), indent)
        return [new.with_changes(leading_lines=node.leading_lines, body=cst.IndentedBlock(body, indent=indent))]

    return replace_statement(file, guard, split)


def moves_too_much(file: File, held: list[ast.stmt]) -> bool:
    """Whether a ``with`` block would move many lines to the right, and the few places where these are left are seen."""
    first, last = held[0].lineno, held[-1].end_lineno
    assert last is not None
    if last - first < _MOVED or is_caught_further_out(file, held[0]):
        return False
    leaves = ways_out(held)
    return all(map(gives_what_is_there, leaves)) and len(leaves) + (not all_leave(held)) <= _LEAVES


def between_lines(file: File, held: list[ast.stmt], name: str, entered: str, context: str, given: Sequence[str]) -> list[Change]:
    """Puts ``name = entered(context(given))`` in front of statements, and ``name.close()`` wherever they are left."""

    def enter() -> Sequence[Statement]:
        return statements(_lines(f"{name} = {entered}({context}", given, ")", held[0]) + "\n")

    def leave() -> Sequence[Statement]:
        return statements(f"{name}.close()\n")

    changes = [insert_before(file, held[0], enter), *(insert_before(file, out, leave) for out in ways_out(held))]
    return changes if all_leave(held) else [*changes, insert_after(file, held[-1], leave)]


def _lines(begin: str, given: Sequence[str], end: str, at: ast.stmt) -> str:
    """A call, with its arguments on lines of their own if they are long."""
    line = f"{begin}({', '.join(given)}){end}"
    if at.col_offset + len(line) > _WIDEST:
        return f"{begin}(\n" + "".join(f"    {argument},\n" for argument in given) + f"){end}"
    return line
