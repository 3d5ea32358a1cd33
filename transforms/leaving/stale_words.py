"""Comments and docstrings that go on speaking of a wrapper that a file no longer uses."""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence

from ..text.edits import Edit
from ..text.source import Source

_MOST = 4
_COMMENT = re.compile(r"#.*")


def lines_that_name(source: Source, names: set[str], edits: Sequence[Edit]) -> list[int]:
    """The lines with comments and docstrings that name something, in text that the edits leave as it is."""
    word = re.compile(rf"\b({'|'.join(sorted(map(re.escape, names)))})\b")
    prose = _docstring_lines(source.tree)
    changed = {
        line
        for edit in edits
        if edit.end > edit.start
        for line in range(source.position(edit.start)[0], source.position(edit.end - 1)[0] + 1)
    }
    found: list[int] = []
    for number, line in enumerate(source.lines, 1):
        comment = _COMMENT.search(line)
        text = line if number in prose else comment.group() if comment is not None else ""
        if number not in changed and word.search(text):
            found.append(number)
    return found


def named(lines: Sequence[int]) -> str:
    """The lines as people list them, the first ones if there are many."""
    listed = ", ".join(str(line) for line in lines[:_MOST])
    return f"{'lines' if len(lines) > 1 else 'line'} {listed}{' and others' if len(lines) > _MOST else ''}"


def _docstring_lines(tree: ast.Module) -> set[int]:
    lines: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)) and node.body:
            first = node.body[0]
            if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant) and isinstance(first.value.value, str):
                lines.update(range(first.lineno, (first.end_lineno or first.lineno) + 1))
    return lines
