"""Patterns that names are matched against: whether they look at a name from its first letter."""

from __future__ import annotations

import ast

from ..analysis.values import Constant, Opaque
from ..view import FileView

MATCHES = frozenset({"match", "fullmatch", "search", "findall", "fnmatch", "fnmatchcase"})
"""Functions of re and fnmatch, and methods of compiled patterns."""
_FROM_ANYWHERE = frozenset({"search", "findall"})
_OPEN = (".*", "^.*", "*", "(.*")


def is_anchored(view: FileView, node: ast.AST, name: ast.expr) -> bool | None:
    """Whether a pattern starts at a name's first letter; None where the pattern is not known."""
    assert isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)
    given = [part for part in (node.func.value, *node.args[:2]) if part is not name]
    texts = [text for part in given for text in _patterns(view, part)]
    if not texts:
        return None
    if node.func.attr in _FROM_ANYWHERE:
        return any(text.startswith("^") for text in texts)
    return any(not text.startswith(_OPEN) for text in texts)


def _patterns(view: FileView, node: ast.expr) -> list[str]:
    """The patterns that an expression may be, also compiled ones."""
    if isinstance(node, ast.Constant):
        return [node.value] if isinstance(node.value, str) else []
    found = [v.value for v in view.program.elements(view.values(node)) if isinstance(v, Constant) and isinstance(v.value, str)]
    for value in view.values(node):
        if isinstance(value, Opaque) and value.name == "re.compile":
            at, call = view.program.call_node(value.site)
            found += [text for argument in call.args[:1] for text in _patterns(at, argument)]
    return found
