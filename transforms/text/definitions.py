"""New functions at the level of a module: two blank lines around them, as everywhere, and no comment torn off."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Sequence

from ..view import FileView
from .patches import Part, Patch

_WANTED = 2


def defined_before(view: FileView, statement: ast.stmt, parts: Sequence[Part], why: str) -> Patch:
    """Defines a function in front of a statement of the module and of the comments above it; ``parts`` end the last line."""
    line = view.source.position(view.line_start(statement))[0]
    while line > 1 and view.source.lines[line - 2].startswith("#"):
        line -= 1
    start = view.source.line_starts[line - 1]
    above = "\n" * _missing(reversed(view.source.lines[: line - 1]))
    return Patch(view.path, start, start, (above, *parts, "\n" * _WANTED), why)


def defined_instead(view: FileView, statement: ast.stmt, parts: Sequence[Part], why: str) -> Patch:
    """Defines a function in the place of a statement; ``parts`` end without a newline."""
    if view.indent(statement):
        return view.replace(statement, parts, why)
    first, last = statement.lineno, statement.end_lineno or statement.lineno
    above = "\n" * _missing(reversed(view.source.lines[: first - 1]))
    below = "\n" * _missing(view.source.lines[last:])
    return view.replace(statement, (above, *parts, below), why)


def _missing(lines: Iterable[str]) -> int:
    """How many blank lines are missing to two; none at the edge of a file or beside a comment."""
    for blank, line in enumerate(lines):
        if line.strip():
            return 0 if line.startswith("#") else max(0, _WANTED - blank)
    return 0
