"""New functions: two blank lines around them at the level of a module, one inside a block, and no comment torn off."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Sequence

from ..view import FileView
from .patches import Part, Patch

_WANTED = 2
_WANTED_INSIDE = 1


def defined_before(view: FileView, statement: ast.stmt, parts: Sequence[Part], why: str) -> Patch:
    """Defines a function in front of a statement of the module and of the comments above it; ``parts`` end the last line."""
    line = view.source.position(view.line_start(statement))[0]
    while line > 1 and view.source.lines[line - 2].startswith("#"):
        line -= 1
    start = view.source.line_starts[line - 1]
    above = "\n" * _missing(reversed(view.source.lines[: line - 1]))
    return Patch(view.path, start, start, (above, *parts, "\n" * _WANTED), why)


def defined_instead(
    view: FileView, statement: ast.stmt, parts: Sequence[Part], why: str, is_first: bool = False
) -> Patch:
    """Defines a function in the place of a statement, the first of its block or not; ``parts`` end without a newline."""
    indent = view.indent(statement)
    wanted = _WANTED_INSIDE if indent else _WANTED
    first, last = statement.lineno, statement.end_lineno or statement.lineno
    above = "" if is_first else "\n" * _missing(reversed(view.source.lines[: first - 1]), wanted, indent)
    below = "\n" * _missing(view.source.lines[last:], wanted, indent)
    start, end = view.source.span(statement)
    if "#" in view.source.text[end : view.line_end(statement)]:
        below = ""
    if above:
        start, parts = view.line_start(statement), (above, indent, *parts)
    return Patch(view.path, start, end, (*parts, below), why)


def _missing(lines: Iterable[str], wanted: int = _WANTED, indent: str = "") -> int:
    """How many blank lines are missing; none at the edge of a file or block, or beside a comment."""
    for blank, line in enumerate(lines):
        if line.strip():
            beside = line.startswith(indent) and not line[len(indent) :].startswith("#")
            return max(0, wanted - blank) if beside else 0
    return 0
