"""Which of two places of a function stands in front of the other."""

from __future__ import annotations

import ast

from .file import File


def precedes(file: File, first: ast.AST, second: ast.AST) -> bool:
    """Whether a place of a function stands in front of another one of it, not in the other branch of a test."""
    if file.function(first) is not file.function(second) or _start(second) < _end(first):
        return False
    return not in_other_branch(file, first, second)


def in_other_branch(file: File, one: ast.AST, other: ast.AST) -> bool:
    """Whether two places of a function stand in branches of a test of which one pass takes but one."""
    branches = {id(around): branch for around, branch in _branches(file, one)}
    return any(branches.get(id(around), branch) != branch for around, branch in _branches(file, other))


def _branches(file: File, node: ast.AST) -> list[tuple[ast.AST, bool]]:
    """The tests around a place, with the branch that it stands in."""
    found: list[tuple[ast.AST, bool]] = []
    inside = node
    for around in file.ancestors(node):
        if isinstance(around, (ast.If, ast.IfExp)):
            orelse = around.orelse if isinstance(around.orelse, list) else [around.orelse]
            found.append((around, any(inside is part for part in orelse)))
        inside = around
    return found


def _start(node: ast.AST) -> tuple[int, int]:
    return node.lineno, node.col_offset  # type: ignore[attr-defined]


def _end(node: ast.AST) -> tuple[int, int]:
    return node.end_lineno, node.end_col_offset  # type: ignore[attr-defined]
