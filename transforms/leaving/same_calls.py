"""Choices between two calls that have become one call of either this or that: ``f(a) if test else f(b)``."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ..text.generated import call_text
from ..text.patches import Patch, patched
from ..view import FileView
from .harmless import is_harmless

_WHY = "both ways are one call now"


@dataclass
class _Call:
    """A call as the patches leave it: the text of its function and of its arguments."""

    function: str
    arguments: list[str]


def same_calls(view: FileView, patches: Sequence[Patch]) -> list[Patch]:
    """One call in the place of each choice between two new ones that differ in their first argument at most."""
    return list(_merged(view, patches)) if patches else []


def _merged(view: FileView, patches: Sequence[Patch]) -> Iterator[Patch]:
    replaced = {(patch.start, patch.end) for patch in patches}
    for choice in view.nodes(ast.IfExp):
        start, end = view.source.span(choice)
        sides = [view.source.span(side) for side in (choice.body, choice.orelse)]
        if not all(side in replaced for side in sides) or "#" in view.source.text[start:end]:
            continue
        body, orelse = (_call(patched(view.source, side, patches)) for side in sides)
        if body is None or orelse is None or body.function != orelse.function or body.arguments[1:] != orelse.arguments[1:]:
            continue
        first = body.arguments[0]
        if first != orelse.arguments[0]:
            first += f" if {patched(view.source, view.source.span(choice.test), patches)} else {orelse.arguments[0]}"
        elif not is_harmless(view, choice.test):
            continue
        arguments = [(argument,) for argument in (first, *body.arguments[1:])]
        column = view.source.position(start)[1] - 1
        yield Patch(view.path, start, end, call_text(body.function, arguments, view.source.indent_at(start), column), _WHY)


def _call(text: str) -> _Call | None:
    """The call that a text is; None for anything else, and where an argument goes over several lines."""
    whole = f"({text})"
    node = ast.parse(whole, mode="eval").body
    if not isinstance(node, ast.Call) or not node.args:
        return None
    parts = [node.func, *node.args, *node.keywords]
    texts = [ast.get_source_segment(whole, part) or "" for part in parts]
    return None if any("\n" in part for part in texts) else _Call(texts[0], texts[1:])
