"""Messages of errors that name the class which a test in front of them asked for: they name the new one."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence

from ..judge import Judgement
from ..text.patches import Patch
from ..view import FileView

_WHY = "the message names what the test asks for"
_ABBREVIATIONS = ("FSDP", "DDP", "DP")
"""Names that messages use for the method, not for the class."""


def renamed_in_messages(judgements: Sequence[Judgement]) -> list[Patch]:
    """The old name of a class replaced in the errors that are raised by what tests for the class decide."""
    patches = [
        patch
        for judgement in judgements
        if judgement.applied and judgement.site.role == "isinstance"
        for patch in _renamed(judgement)
    ]
    return list(dict.fromkeys(patches))


def _renamed(judgement: Judgement) -> Iterator[Patch]:
    view, node = judgement.site.view, judgement.site.node
    span = view.source.span(node)
    replaced = next((p for p in judgement.outcome.patches if (p.file, p.start, p.end) == (view.path, *span)), None)
    old = node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")
    if replaced is None or len(replaced.parts) != 1 or old in _ABBREVIATIONS:
        return
    new = replaced.parts[0]
    if not isinstance(new, str):
        return
    word = re.compile(rf"\b{re.escape(old)}\b")
    for text in _messages(view, node):
        start, end = view.source.span(text)
        for match in word.finditer(view.source.text, start, end):
            yield Patch(view.path, match.start(), match.end(), (new.rpartition(".")[2],), _WHY)


def _messages(view: FileView, node: ast.AST) -> Iterator[ast.expr]:
    """Texts without a value in them, of the errors that a test around a node raises."""
    statement = view.statement(node)
    if isinstance(statement, ast.Assert):
        errors: list[ast.AST] = [statement.msg] if statement.msg is not None else []
    elif isinstance(statement, ast.If):
        errors = [s for block in (statement.body, statement.orelse) for s in block if isinstance(s, ast.Raise)]
    else:
        return
    for error in errors:
        inside = {id(part) for f in ast.walk(error) if isinstance(f, ast.JoinedStr) for part in f.values}
        for text in ast.walk(error):
            if isinstance(text, ast.JoinedStr):
                is_plain = not any(isinstance(value, ast.FormattedValue) for value in text.values)
            else:
                is_plain = isinstance(text, ast.Constant) and isinstance(text.value, str) and id(text) not in inside
            if is_plain and isinstance(text, ast.expr):
                yield text
