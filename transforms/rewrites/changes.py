"""Changes that rules ask for: which node, and the function from the node as it is by then to what takes its place.

Nothing is changed here; ``one_pass`` applies all changes of a file at once, from the inside out, so that a function is
handed its node with the changes inside it already made.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum

import libcst as cst

from ..queries.file import File
from .idle_tests import only_looks

Statement = cst.SimpleStatementLine | cst.BaseCompoundStatement
Build = Callable[[cst.CSTNode], cst.CSTNode]
BuildStatements = Callable[[Statement], Sequence[Statement]]


class Where(Enum):
    """What a change does with its node."""

    REPLACE = "replace"
    STATEMENT = "statement"
    BEFORE = "before"
    AFTER = "after"


@dataclass(frozen=True, eq=False)
class Change:
    """One change of one node. ``build`` gives a node for ``REPLACE``, a list of statements otherwise.

    ``STATEMENT`` replaces the whole statement (its line) by the statements given, none to remove it; ``BEFORE`` and
    ``AFTER`` put them beside it.
    """

    file: File
    node: ast.AST
    where: Where
    build: Build | BuildStatements
    late: bool = False
    """Whether it is made after the other changes of its node."""


def replace(file: File, node: ast.AST, build: Build, late: bool = False) -> Change:
    """Replaces an expression, argument or small statement by what ``build`` makes of it."""
    return Change(file, node, Where.REPLACE, build, late)


def replace_statement(file: File, node: ast.stmt, build: BuildStatements) -> Change:
    """Replaces a whole statement, with its line."""
    return Change(file, node, Where.STATEMENT, build)


def remove_statement(file: File, node: ast.stmt) -> Change:
    """Removes a whole statement, with the tests that were for it alone; elsewhere ``pass`` takes its place in an empty block."""
    around = file.parents[node]
    while isinstance(around, ast.If) and around.body == [node] and not around.orelse and only_looks(around.test):
        above = file.parents[around]
        if isinstance(above, ast.If) and above.orelse == [around]:
            break  # an elif
        node, around = around, above
    return Change(file, node, Where.STATEMENT, lambda _: ())


def insert_before(file: File, node: ast.stmt, statements: Callable[[], Sequence[Statement]]) -> Change:
    """Puts statements in front of a statement."""
    return Change(file, node, Where.BEFORE, lambda _: statements())


def insert_after(file: File, node: ast.stmt, statements: Callable[[], Sequence[Statement]]) -> Change:
    """Puts statements behind a statement."""
    return Change(file, node, Where.AFTER, lambda _: statements())
