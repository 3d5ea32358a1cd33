"""What a branch decides about training by itself: its numbers, the constants that it assigns, whether it clips."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterable

_NO_CHOICE = (ast.Compare, ast.Subscript, ast.JoinedStr, ast.Raise, ast.Assert, ast.FunctionDef, ast.ClassDef)
_REPORTS = frozenset({"print", "debug", "info", "warning", "warn", "log", "exit", "join", "barrier", "startswith", "replace"})


def choices_in(statements: Iterable[ast.AST]) -> Counter[str]:
    """The choices of some statements: two branches with the same ones train alike, as far as they show."""
    found: Counter[str] = Counter()
    for statement in statements:
        _collect(statement, found)
    return found


def _collect(node: ast.AST, found: Counter[str]) -> None:
    if isinstance(node, _NO_CHOICE):
        return
    if isinstance(node, ast.Call):
        name = getattr(node.func, "id", getattr(node.func, "attr", ""))
        if name in _REPORTS:
            return
        if name.startswith("clip_grad_"):
            found["clips"] += 1
    elif isinstance(node, (ast.Assign, ast.AnnAssign)) and isinstance(node.value, ast.Constant):
        found[repr(node.value.value)] += 1
        return
    elif isinstance(node, ast.Constant) and isinstance(node.value, (int, float)) and not isinstance(node.value, bool):
        found[repr(node.value)] += 1
    for child in ast.iter_child_nodes(node):
        _collect(child, found)
