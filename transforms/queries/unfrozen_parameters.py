"""Parameters that may learn from some time after the wrap on."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable

from .file import File
from .program import Program


def may_unfreeze_later(program: Program, paths: Iterable[str], is_before: Callable[[File, ast.AST], bool]) -> bool:
    """Whether some of these files switch ``requires_grad`` on at a place that is not surely in front of all wraps."""
    for file in map(program.file, paths):
        if "requires_grad" not in file.source.text:
            continue
        for node in file.nodes(ast.Assign, ast.Call):
            if _switches_on(node) and not is_before(file, node):
                return True
    return False


def _switches_on(node: ast.AST) -> bool:
    if isinstance(node, ast.Assign):
        return any(isinstance(t, ast.Attribute) and t.attr == "requires_grad" for t in node.targets) and not _is_false(node.value)
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute) or node.func.attr != "requires_grad_":
        return False
    given = [*node.args, *(keyword.value for keyword in node.keywords)]
    return not given or not _is_false(given[0])


def _is_false(value: ast.expr) -> bool:
    return isinstance(value, ast.Constant) and not value.value
