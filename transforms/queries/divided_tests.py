"""Tests of guards that ask for the rank beside something else: ``if rank == 0 and step % 10 == 0:``."""

from __future__ import annotations

import ast

from .conditions import is_rank_condition
from .file import File


def beside_the_rank(file: File, guard: ast.stmt, condition: str) -> tuple[str, str] | None:
    """What a guard asks, as the given condition, which all ranks answer alike, and the rest, about the rank; None for others."""
    test = guard.test if isinstance(guard, ast.If) and not guard.orelse and not _is_elif(file, guard) else None
    if not isinstance(test, ast.BoolOp) or not isinstance(test.op, ast.And) or _has_comments(file, guard, test):
        return None
    of_rank = [part for part in test.values if is_rank_condition(file, part)]
    others = [part for part in test.values if part not in of_rank]
    if not of_rank or not others or _dump(_joined(file, others)) != _dump(condition):
        return None
    return _joined(file, others), _joined(file, of_rank)


def _is_elif(file: File, statement: ast.If) -> bool:
    around = file.parents[statement]
    return isinstance(around, ast.If) and around.orelse == [statement] and around.col_offset == statement.col_offset


def _has_comments(file: File, guard: ast.stmt, test: ast.expr) -> bool:
    """Whether a test goes over several lines with comments between them, which would have no place."""
    lines = file.source.text.splitlines()[guard.lineno - 1 : test.end_lineno]
    return len(lines) > 1 and any("#" in line for line in lines)


def _joined(file: File, parts: list[ast.expr]) -> str:
    texts = (file.text(part) for part in parts)
    spelled = [text if "\n" not in text else ast.unparse(part) for text, part in zip(texts, parts, strict=True)]
    if len(parts) == 1:
        return spelled[0]
    needs_parentheses = (isinstance(part, (ast.BoolOp, ast.IfExp, ast.Lambda)) for part in parts)
    return " and ".join(f"({text})" if needs else text for text, needs in zip(spelled, needs_parentheses, strict=True))


def _dump(condition: str) -> str:
    return ast.dump(ast.parse(condition, mode="eval"))
