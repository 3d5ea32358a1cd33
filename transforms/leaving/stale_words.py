"""Comments and docstrings that go on speaking of an old class that a file no longer uses."""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence

from ..text.edits import Edit
from ..text.source import Source

_MOST = 4
_COMMENT = re.compile(r"#.*")


WRAPPING = re.compile(r"\bFullyShardedDataParallel\b|\bFSDP\(\w")
"""Text that surely means FSDP1: its class, or a call that wraps."""


def about(names: set[str]) -> re.Pattern[str] | None:
    """Text that speaks of old symbols by names: no words of everyday language, nor FSDP, which may be FSDP2."""
    telling = sorted(re.escape(name) for name in names if name != "FSDP" and name != name.lower())
    return re.compile(rf"\b({'|'.join(telling)})\b") if telling else None


def lines_that_speak(source: Source, words: re.Pattern[str], edits: Sequence[Edit]) -> list[int]:
    """The lines with comments and docstrings that speak of something, in text that the edits leave as it is."""
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
        if number not in changed and words.search(text):
            found.append(number)
    return found


def named(lines: Sequence[int]) -> str:
    """The lines as people list them, the first ones if there are many."""
    listed = ", ".join(str(line) for line in lines[:_MOST])
    return f"{'lines' if len(lines) > 1 else 'line'} {listed}{' and others' if len(lines) > _MOST else ''}"


def _docstring_lines(tree: ast.Module) -> set[int]:
    """Lines of strings that stand for themselves: docstrings, also of fields."""
    lines: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            lines.update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    return lines
