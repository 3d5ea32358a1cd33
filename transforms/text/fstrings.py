"""Positions inside f-strings, which Python before 3.12 reports wrongly for many of them.

The replacement fields of a string token are found by scanning it; each field's expression is parsed on its own,
and its positions, shifted to where the field stands, are given to the nodes of the tree.
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
from bisect import bisect_right
from collections.abc import Iterator
from itertools import accumulate

from .trees import children, walk

_PREFIX = re.compile(r"[fF][rR]?[\"']|[rR][fF][\"']")


def mend_positions(tree: ast.Module, text: str) -> None:
    """Corrects the positions of the expressions in every f-string of a tree, in place."""
    if not _PREFIX.search(text):
        return
    lines = io.StringIO(text, newline="").readlines()
    starts = list(accumulate(map(len, lines), initial=0))
    for node in _outermost(tree):
        fields = [field for token in _string_tokens(text, *_offset(node, lines, starts)) for field in _fields(text, *token)]
        values = list(_formatted_values(node))
        if len(fields) == len(values):
            for value, (start, end) in zip(values, fields, strict=True):
                _place(value.value, text, start, end, lines, starts)


def _outermost(tree: ast.AST) -> Iterator[ast.JoinedStr]:
    pending = [tree]
    while pending:
        node = pending.pop()
        if isinstance(node, ast.JoinedStr):
            yield node
        else:
            pending += children(node)


def _formatted_values(node: ast.JoinedStr) -> Iterator[ast.FormattedValue]:
    """The fields of an f-string in the order of the text: a field, then those in its format."""
    for value in node.values:
        if isinstance(value, ast.FormattedValue):
            yield value
            if isinstance(value.format_spec, ast.JoinedStr):
                yield from _formatted_values(value.format_spec)


def _string_tokens(text: str, start: int, end: int) -> Iterator[tuple[int, int]]:
    """(start, end) of the f-string tokens of an expression between two offsets; none that the tokenizer refuses."""
    lines = io.StringIO(f"({text[start:end]})", newline="").readlines()
    starts = list(accumulate(map(len, lines), initial=start - 1))
    try:
        for token in tokenize.generate_tokens(iter(lines).__next__):
            prefix = token.string.partition("'")[0].partition('"')[0].lower()
            if token.type == tokenize.STRING and "f" in prefix:
                yield starts[token.start[0] - 1] + token.start[1], starts[token.end[0] - 1] + token.end[1]
    except (tokenize.TokenError, IndentationError, SyntaxError):
        return


def _fields(text: str, start: int, end: int) -> Iterator[tuple[int, int]]:
    """(start, end) of the expression of each replacement field between two offsets."""
    position = start
    while position < end:
        if text.startswith(("{{", "}}"), position):
            position += 2
        elif text[position] == "{":
            close = _expression_end(text, position + 1, end)
            yield position + 1, close
            position = close
            if text[position : position + 1] == "!":
                position += 2
            if text[position : position + 1] == ":":
                after = _format_end(text, position + 1, end)
                yield from _fields(text, position + 1, after)
                position = after
            position += 1
        else:
            position += 1


def _expression_end(text: str, position: int, end: int) -> int:
    """Where the expression of a field stops: at ``}``, ``:``, ``!r`` or ``=`` outside brackets and strings."""
    depth = 0
    while position < end:
        character = text[position]
        if character in "'\"":
            quote = text[position : position + 3] if text[position : position + 3] == character * 3 else character
            position = text.find(quote, position + len(quote), end)
            if position < 0:
                return end
            position += len(quote)
            continue
        if character in "([{":
            depth += 1
        elif character in ")]}" and depth:
            depth -= 1
        elif depth == 0 and _ends_expression(text, position):
            return position
        position += 1
    return end


def _ends_expression(text: str, position: int) -> bool:
    """Whether a field's expression ends before this character: at its close, its format, ``!r``, or a debugging ``=``."""
    character, following = text[position], text[position + 1 : position + 2]
    if character == "!":
        return following != "="
    if character == "=":
        return following in ("}", "!", ":") and text[position - 1] not in "=!<>"
    return character in "}:"


def _format_end(text: str, position: int, end: int) -> int:
    depth = 0
    while position < end:
        if text[position] == "{":
            depth += 1
        elif text[position] == "}":
            if depth == 0:
                return position
            depth -= 1
        position += 1
    return end


def _place(value: ast.expr, text: str, start: int, end: int, lines: list[str], starts: list[int]) -> None:
    """Gives the nodes of ``value`` the positions of the same nodes in the text from ``start`` to ``end``."""
    try:
        parsed = ast.parse(f"({text[start:end]})", mode="eval").body
    except SyntaxError:
        return
    if ast.dump(parsed) != ast.dump(value):
        return
    local = f"({text[start:end]})".splitlines(keepends=True)
    local_starts = [0]
    for line in local:
        local_starts.append(local_starts[-1] + len(line))
    for node, model in zip(walk(value), walk(parsed), strict=True):
        if not isinstance(node, (ast.expr, ast.keyword, ast.arg)):
            continue
        first, last = _offset(model, local, local_starts)  # pyright: ignore[reportArgumentType]
        node.lineno, node.col_offset = _position(first - 1 + start, lines, starts)
        node.end_lineno, node.end_col_offset = _position(last - 1 + start, lines, starts)


def _offset(node: ast.expr, lines: list[str], starts: list[int]) -> tuple[int, int]:
    def at(line: int, column: int) -> int:
        return starts[line - 1] + len(lines[line - 1].encode()[:column].decode())

    return at(node.lineno, node.col_offset), at(node.end_lineno or node.lineno, node.end_col_offset or 0)


def _position(offset: int, lines: list[str], starts: list[int]) -> tuple[int, int]:
    """(line, UTF-8 column) of an offset."""
    line = bisect_right(starts, offset) - 1
    return line + 1, len(lines[line][: offset - starts[line]].encode()) if line < len(lines) else 0
