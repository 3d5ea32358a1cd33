"""Paragraphs of a block: statements without a blank line between them, under one heading."""

from __future__ import annotations

import ast
import re
from collections.abc import Collection

from ..leaving.harmless import is_harmless
from ..view import FileView

_LONGEST = 3
_WORD = re.compile(r"[a-z]{2,}")


def paragraph_of(view: FileView, block: list[ast.stmt], index: int) -> range:
    """The places of the statements that stand together with one of a block."""
    first, last = index, index
    while first and not _is_apart(view, block[first - 1], block[first]):
        first -= 1
    while last + 1 < len(block) and not _is_apart(view, block[last], block[last + 1]):
        last += 1
    return range(first, last + 1)


def _is_apart(view: FileView, above: ast.stmt, below: ast.stmt) -> bool:
    between = view.source.text[view.line_end(above) : view.line_start(below)]
    return any(not line.strip() for line in between.splitlines())


def heading_for(view: FileView, block: list[ast.stmt], index: int, moved: Collection[int]) -> str:
    """The line that a statement takes along when it leaves the one that stands right under its heading behind.

    It is the heading's text where that is short and says nothing that the statement does not say as well.
    """
    together = paragraph_of(view, block, index)
    if (together.start in moved) == (index in moved):
        return ""
    start = view.source.position(view.line_start(block[together.start]))[0]
    lines = view.source.lines
    above = [lines[number - 1].strip() for number in (start - 1, start - 2) if number > 0]
    if not above or not above[0].startswith("#") or (len(above) > 1 and above[1].startswith("#")):
        return ""
    words = _WORD.findall(above[0].lower())
    text = _what_it_makes(view, block[index]).lower()
    is_title = 0 < len(words) <= _LONGEST and all(word in text for word in words)
    return above[0] if is_title else ""


def _what_it_makes(view: FileView, statement: ast.stmt) -> str:
    """The names that an assignment binds, and of what it calls for them; any other statement whole."""
    if not isinstance(statement, ast.Assign):
        return view.text(statement)
    called = statement.value.func if isinstance(statement.value, ast.Call) else None
    return " ".join(view.text(node) for node in [*statement.targets, called] if node is not None)


def is_a_setting(view: FileView, statement: ast.stmt) -> bool:
    """Whether a statement does nothing but give names their values, which takes no doing."""
    if isinstance(statement, ast.If):
        inner = [*statement.body, *statement.orelse]
        return is_harmless(view, statement.test) and all(is_a_setting(view, child) for child in inner)
    targets = statement.targets if isinstance(statement, ast.Assign) else []
    names = [element for target in targets for element in getattr(target, "elts", [target])]
    return (
        isinstance(statement, ast.Assign)
        and all(isinstance(name, ast.Name) for name in names)
        and is_harmless(view, statement.value)
    )
