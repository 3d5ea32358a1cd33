"""Names that are put together: ``f"on_{event}"`` and ``"on_" + event`` begin with what is written."""

from __future__ import annotations

import ast

from .facts import NamePattern

_SHORTEST = 3
"""Less text than this would fit too many names to tell any."""


def name_pattern(node: ast.expr) -> NamePattern | None:
    """What a name that is put together begins and ends with."""
    match node:
        case ast.JoinedStr(values=[first, *_]):
            start, end = _text(first), _text(node.values[-1])
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            start, end = _text(left), _text(right)
        case _:
            return None
    written = start + end
    return NamePattern(start, end) if len(written) >= _SHORTEST and written.isidentifier() else None


def _text(node: ast.expr) -> str:
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""
