"""What the text of the user's files says about their running code: functions, statements, what these bind, calls."""

from __future__ import annotations

import ast
import dis
import os
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from types import CodeType
from typing import Any

Position = tuple[int, int]
"""Line and column, from 1, in characters."""
_INSTALLED = ("site-packages", "dist-packages")


@dataclass
class Statement:
    """A simple statement, or the head of a compound one: its lines, what it binds, and the paths that it reads."""

    first: int
    last: int
    bound: list[tuple[Position, ast.expr]] = field(default_factory=list)
    read: list[tuple[Position, ast.expr]] = field(default_factory=list)
    owners: list[tuple[Position, ast.expr]] = field(default_factory=list)
    """Those of ``read`` of which an attribute is asked for, or set."""


@dataclass
class Function:
    """One code object's text: a module, a ``def`` or a ``lambda``. ``line`` is that of ``def``, without decorators."""

    name: str
    line: int
    statements: dict[int, Statement] = field(default_factory=dict)
    """By each of their lines. Where two share a line, it is left out: nothing tells when the first has ended."""


class UserFile:
    """One file of the repository."""

    def __init__(self, path: str, name: str) -> None:
        self.path = path
        self.name = name
        """Relative to the root, as the trace names it."""
        self.lines: set[int] = set()
        """Those that were executed."""
        self._functions: dict[tuple[str, int], Function | None] = {}
        with open(path, "rb") as file:
            data = file.read()
        self._text = data.split(b"\n")
        try:
            tree = ast.parse(data)
        except (SyntaxError, ValueError):
            return
        self._add("<module>", None, 1, 1, tree.body)

    def function(self, code: CodeType) -> Function | None:
        """The function that a code object was made from; None for a comprehension, or where two cannot be told apart."""
        return self._functions.get((code.co_name, 1 if code.co_name == "<module>" else code.co_firstlineno))

    def _add(self, name: str, node: ast.AST | None, start: int, line: int, body: list[ast.stmt]) -> None:
        key = (name, start)
        function = Function(name, line)
        self._functions[key] = None if key in self._functions else function
        statements = list(_own_statements(body))
        shared = Counter(number for statement in statements for number in range(*_extent(statement)))
        for statement in statements:
            first, behind = _extent(statement)
            if all(shared[number] == 1 for number in range(first, behind)):
                found = Statement(first, behind - 1)
                for target in _targets(statement):
                    found.bound.append((self._position(target), target))
                found.read = [(self._position(path), path) for path in _paths(statement)]
                asked = {node.value for node in ast.walk(statement) if isinstance(node, ast.Attribute)}
                found.owners = [(place, path) for place, path in found.read if path in asked]
                function.statements.update(dict.fromkeys(range(first, behind), found))
        for inner in _definitions(body if node is None or not isinstance(node, ast.Lambda) else [node.body]):
            if isinstance(inner, ast.Lambda):
                self._add("<lambda>", inner, inner.lineno, inner.lineno, [])
            else:
                first = min([inner.lineno, *(decorator.lineno for decorator in inner.decorator_list)])
                self._add(inner.name, inner, first, inner.lineno, inner.body)

    def _position(self, node: ast.expr) -> Position:
        before = self._text[node.lineno - 1][: node.col_offset]
        return node.lineno, len(before.decode("utf-8", "replace")) + 1

    def end_of_call(self, code: CodeType, offset: int) -> Position | None:
        """Where the call that a frame is in ends; None where it is in no call, or this Python does not know."""
        positions: Any = getattr(code, "co_positions", None)  # absent before Python 3.11
        while offset > 0 and dis.opname[code.co_code[offset]] == "CACHE":
            offset -= 2  # Python 3.11 stands behind a call of Python code, on its cache
        if positions is None or not dis.opname[code.co_code[offset]].startswith("CALL"):
            return None
        _, line, _, column = list(positions())[offset // 2]
        if line is None or column is None:
            return None
        return line, len(self._text[line - 1][:column].decode("utf-8", "replace")) + 1


class UserFiles:
    """The files of the repository, read when the first code of each runs."""

    def __init__(self, root: str) -> None:
        self._root = os.path.realpath(root) + os.sep
        self._known: dict[str, UserFile | None] = {}

    def of(self, path: str) -> UserFile | None:
        """The file, if it is one of the repository's own."""
        try:
            return self._known[path]
        except KeyError:
            found = self._known[path] = self._read(path)
            return found

    def all(self) -> list[UserFile]:
        """Those that have been asked for, each once."""
        return list({file.name: file for file in self._known.values() if file is not None}.values())

    def _read(self, path: str) -> UserFile | None:
        real = os.path.realpath(path)
        name = real[len(self._root) :].replace(os.sep, "/")
        if not real.startswith(self._root) or any(part in _INSTALLED for part in name.split("/")):
            return None
        same = next((file for file in self.all() if file.name == name), None)
        try:
            return same or UserFile(real, name)
        except OSError:
            return None


def _own_statements(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """The statements that run in the code object of a body: not those of functions in it."""
    for statement in body:
        yield statement
        if isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            continue
        for name in ("body", "orelse", "finalbody"):
            yield from _own_statements(getattr(statement, name, []))
        for part in (*getattr(statement, "handlers", ()), *getattr(statement, "cases", ())):
            yield from _own_statements(part.body)


def _extent(statement: ast.stmt) -> tuple[int, int]:
    """The first line of a statement, or of its head, and the one behind its last."""
    body = getattr(statement, "body", None)
    if isinstance(body, list) and body:
        return statement.lineno, max(statement.lineno + 1, body[0].lineno)
    return statement.lineno, (statement.end_lineno or statement.lineno) + 1


def _targets(statement: ast.stmt) -> Iterator[ast.expr]:
    """The names and attributes that a statement binds."""
    targets: list[ast.expr] = []
    if isinstance(statement, ast.Assign):
        targets += statement.targets
    elif isinstance(statement, (ast.AnnAssign, ast.For, ast.AsyncFor)):
        targets.append(statement.target)
    elif isinstance(statement, (ast.With, ast.AsyncWith)):
        targets += [item.optional_vars for item in statement.items if item.optional_vars is not None]
    while targets:
        target = targets.pop()
        if isinstance(target, (ast.Tuple, ast.List)):
            targets += target.elts
        elif _is_path(target):
            yield target


def _paths(statement: ast.stmt) -> Iterator[ast.expr]:
    """The names and dotted paths that a statement, or its head, reads."""
    pending: list[ast.AST] = [statement]
    while pending:
        node = pending.pop()
        if isinstance(node, (ast.Name, ast.Attribute)) and isinstance(node.ctx, ast.Load) and _is_path(node):
            yield node
        if node is statement or not isinstance(node, (ast.stmt, ast.Lambda, ast.ExceptHandler)):
            pending += ast.iter_child_nodes(node)


def _is_path(node: ast.expr) -> bool:
    while isinstance(node, ast.Attribute):
        node = node.value
    return isinstance(node, ast.Name)


def _definitions(body: list[ast.stmt] | list[ast.expr]) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda]:
    """The functions right inside a body, those in classes and expressions among them, but not those inside functions."""
    pending: list[ast.AST] = list(body)
    while pending:
        node = pending.pop()
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
            yield node
            if not isinstance(node, ast.Lambda):
                pending += node.decorator_list
        else:
            pending += ast.iter_child_nodes(node)
