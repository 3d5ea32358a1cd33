"""Taking arguments out of a call, in the call's own layout."""

from __future__ import annotations

import ast
from collections.abc import Sequence

from ..text.patches import Patch
from ..view import FileView

_WHY = "arguments without a counterpart"


def without_arguments(view: FileView, call: ast.Call, gone: Sequence[ast.expr | ast.keyword]) -> list[Patch]:
    """Patches that take arguments out: whole lines, with their comments, where each has lines of its own."""
    listed: list[ast.expr | ast.keyword] = [*call.args, *call.keywords]
    if not gone:
        return []
    if all(_has_own_lines(view, argument) for argument in gone):
        return [_lines(view, argument) for argument in gone]
    kept = [argument for argument in listed if argument not in gone]
    start, end = view.source.span(listed[0])[0], view.source.span(listed[-1])[1]
    parts: list[object] = []
    for number, argument in enumerate(kept):
        parts.extend((", " if number else "", view.keep(argument)))
    return [Patch(view.path, start, end, tuple(parts), _WHY)]  # pyright: ignore[reportArgumentType]


def _has_own_lines(view: FileView, argument: ast.AST) -> bool:
    start, end = view.source.span(argument)
    first = view.source.position(start)[0]
    before = view.source.text[view.source.line_starts[first - 1] : start]
    after = view.source.text[end : _line_end(view, end)]
    return not before.strip() and after.strip().partition("#")[0].strip() == ","


def _lines(view: FileView, argument: ast.AST) -> Patch:
    start, end = view.source.span(argument)
    first = view.source.position(start)[0]
    while view.source.lines[first - 2].lstrip().startswith("#"):
        first -= 1
    return Patch(view.path, view.source.line_starts[first - 1], _line_end(view, end), (), _WHY)


def _line_end(view: FileView, offset: int) -> int:
    line = view.source.position(offset)[0]
    starts = view.source.line_starts
    return starts[line] if line < len(starts) else len(view.source.text)
