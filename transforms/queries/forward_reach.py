"""What may run inside the forward of a module, by names alone: so it holds for receivers of which nothing is known."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence

from .file import File

_ENTERED = re.compile(r"forward$|__(?!init__|new__|post_init__|main__)\w+__$")
"""Functions that a forward enters without naming them: its own parts, and what operators and attributes call."""

_PLAIN_DECORATORS = re.compile(r"^(?:torch\.|functools\.|abc\.|abstractmethod|staticmethod|classmethod|contextmanager|wraps\b)")
"""Decorators that keep no function for others to call; properties are called by their names."""

Place = tuple[File, ast.AST]


def functions_in_forwards(files: Sequence[File]) -> list[Place]:
    """The functions that a forward, or a hook of a module, may come to; all where a name is put together at run time.

    A function is taken to be reached by every mention of its name, and wherever it is kept: as a value, or by a decorator.
    Bodies of hooks that are lambdas come as they are.
    """
    by_name: dict[str, list[Place]] = {}
    found: list[Place] = []
    pending: list[Place] = []
    for file in files:
        for node in file.nodes(ast.FunctionDef, ast.AsyncFunctionDef):
            by_name.setdefault(node.name, []).append((file, node))
        for cls in file.nodes(ast.ClassDef):
            made = [m for m in cls.body if isinstance(m, ast.FunctionDef) and m.name in ("__init__", "__new__", "__post_init__")]
            by_name.setdefault(cls.name, []).extend((file, method) for method in made)
        pending += [(file, node) for node in _handed_on(file)]
    stored = {name for file in files for name in _stored(file)}
    pending += [place for name in stored for place in by_name.get(name, ())]
    pending += [place for name, places in by_name.items() if _ENTERED.match(name) for place in places]
    seen: set[ast.AST] = set()
    while pending:
        file, node = pending.pop()
        if node in seen:
            continue
        seen.add(node)
        found.append((file, node))
        for name in _mentioned(node):
            if name is None:
                return [place for places in by_name.values() for place in places] + found
            pending += by_name.get(name, ())
    return found


def _handed_on(file: File) -> Iterator[ast.AST]:
    """What is registered as a hook, and what takes the place of a forward."""
    for call in file.nodes(ast.Call):
        if isinstance(call.func, ast.Attribute) and call.func.attr.startswith("register_") and "hook" in call.func.attr:
            yield call
    for assign in file.nodes(ast.Assign):
        if any(isinstance(target, ast.Attribute) and _ENTERED.match(target.attr) for target in assign.targets):
            yield assign


def _stored(file: File) -> Iterator[str]:
    """The names of functions that somebody may call under another name."""
    called = {call.func for call in file.nodes(ast.Call)}
    holders = {attribute.value for attribute in file.nodes(ast.Attribute)}
    for node in file.nodes(ast.Name, ast.Attribute):
        if isinstance(node.ctx, ast.Load) and node not in called and node not in holders:
            yield node.id if isinstance(node, ast.Name) else node.attr
    for function in file.nodes(ast.FunctionDef, ast.AsyncFunctionDef):
        if not all(_PLAIN_DECORATORS.search(ast.unparse(decorator)) for decorator in function.decorator_list):
            yield function.name


def _mentioned(node: ast.AST) -> Iterator[str | None]:
    """The names, attributes and words in a node; None for a name that nobody can read off the text."""
    for inner in ast.walk(node):
        if isinstance(inner, ast.Name):
            yield inner.id
        elif isinstance(inner, ast.Attribute):
            yield inner.attr
        elif isinstance(inner, ast.Constant) and isinstance(inner.value, str):
            yield inner.value
        if is_named_at_run_time(inner):
            yield None


def is_named_at_run_time(node: ast.AST) -> bool:
    """Whether a call reads an attribute, or runs code, that nobody can read off the text."""
    if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("getattr", "eval", "exec")):
        return False
    return len(node.args) < 2 or not isinstance(node.args[1], ast.Constant)
