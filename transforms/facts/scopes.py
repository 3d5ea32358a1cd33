"""Which names a function or loop assigns: Python's scoping rules on the syntax tree."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from ..text.trees import children
from .symbols import star_names

Function = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda
_BLOCKS = (ast.stmt, ast.ExceptHandler, ast.match_case)
_NEW_SCOPE = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef)


@dataclass
class Scope:
    """One function (or module) being walked."""

    function: int
    """Index of the function, -1 for the module."""
    parent: Scope | None
    locals: set[str] = field(default_factory=set)
    outer: set[str] = field(default_factory=set)
    parameters: set[int] = field(default_factory=set)
    """The variables of the parameters, as they come in."""
    environment: dict[str, int] = field(default_factory=dict)
    """The variable that holds each local name and each attribute path at this point."""
    bases: set[str] = field(default_factory=set)
    """What attribute paths have been assigned below."""
    cells: dict[str, int] = field(default_factory=dict)
    """The variable that unites all versions of a name, for nested functions."""
    sinks: list[dict[str, int]] = field(default_factory=list)
    """Variables of the enclosing loops and ``try`` bodies that every assignment flows into as well."""
    alive: bool = True
    class_body: bool = False

    def bind(self, path: str, variable: int) -> None:
        """Makes ``variable`` the current version of a name or an attribute path."""
        self.environment[path] = variable
        while "." in path:
            path = path.rpartition(".")[0]
            self.bases.add(path)

    def forget_below(self, path: str) -> None:
        """Drops what is known of ``path.…`` after ``path`` was assigned."""
        if path not in self.bases:  # so that thousands of assignments do not each look through all names
            return
        prefix = path + "."
        for name in [name for name in self.environment if name.startswith(prefix)]:
            del self.environment[name]


def assigned_names(body: Iterable[ast.AST]) -> set[str]:
    """Names and attribute paths (``self.model``) that the statements bind, nested scopes left out."""
    return set(_assigned(body))


def _assigned(body: Iterable[ast.AST]) -> Iterator[str]:
    stack = list(body)
    while stack:
        node = stack.pop()
        if isinstance(node, ast.Name):
            if not isinstance(node.ctx, ast.Load):
                yield node.id
        elif isinstance(node, ast.Attribute):
            if isinstance(node.ctx, ast.Load):
                stack.append(node.value)
            else:
                path = dotted_path(node)
                if path:
                    yield path
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            yield node.name
        elif isinstance(node, (ast.Lambda, ast.Constant)):
            continue
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            for alias in node.names:
                if alias.name == "*" and isinstance(node, ast.ImportFrom):
                    yield from star_names(node.module or "")
                yield alias.asname or alias.name.partition(".")[0]
        elif isinstance(node, ast.ExceptHandler):
            if node.name:
                yield node.name
            stack.extend(node.body)
        elif isinstance(node, (ast.MatchAs, ast.MatchStar)):
            if node.name:
                yield node.name
            if isinstance(node, ast.MatchAs) and node.pattern:
                stack.append(node.pattern)
        else:
            stack.extend(children(node))


def outer_names(body: Iterable[ast.AST]) -> tuple[set[str], set[str]]:
    """Names that the statements declare ``global`` and ``nonlocal``."""
    global_names: set[str] = set()
    nonlocal_names: set[str] = set()
    stack = list(body)
    while stack:
        node = stack.pop()
        if isinstance(node, ast.Global):
            global_names.update(node.names)
        elif isinstance(node, ast.Nonlocal):
            nonlocal_names.update(node.names)
        elif isinstance(node, ast.stmt) and not isinstance(node, _NEW_SCOPE):
            stack.extend(child for child in children(node) if isinstance(child, _BLOCKS))
        elif isinstance(node, (ast.ExceptHandler, ast.match_case)):
            stack.extend(node.body)
    return global_names, nonlocal_names


def dotted_path(node: ast.expr) -> str | None:
    """``a.b.c`` for a chain of attributes on a name, else None."""
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    if not isinstance(node, ast.Name):
        return None
    parts.append(node.id)
    return ".".join(reversed(parts))
