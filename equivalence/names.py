"""Names that lines of a few files use and nothing binds."""

from __future__ import annotations

import ast
import builtins
from collections.abc import Mapping
from pathlib import PurePosixPath

_OF_MODULES = frozenset(("__file__", "__name__", "__doc__", "__package__", "__spec__", "__path__", "__builtins__"))
_ALL = "*"


def missing_names(sources: Mapping[str, tuple[str, frozenset[int]] | None]) -> set[str]:
    """Names that given lines (counted from 1) of files use and that nothing in these files binds.

    A file that is None is not there: what imports from it misses it. A file that does not parse misses itself.
    """
    trees: dict[str, ast.Module | None] = {}
    for name, source in sources.items():
        try:
            trees[name] = None if source is None else ast.parse(source[0])
        except (SyntaxError, ValueError):
            return {name}
    bound = {PurePosixPath(name).stem: None if tree is None else _bound(tree) for name, tree in trees.items()}
    missing: set[str] = set()
    for name, tree in trees.items():
        source = sources[name]
        if tree is not None and source is not None:
            missing |= _missing(tree, source[1], bound)
    return missing


def _missing(tree: ast.Module, lines: frozenset[int], files: dict[str, set[str] | None]) -> set[str]:
    found: set[str] = set()
    own = _bound(tree)
    for node in ast.walk(tree):
        if getattr(node, "lineno", 0) not in lines:
            continue
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load) and _ALL not in own:
            found |= {node.id} - own - _OF_MODULES - set(dir(builtins))
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            theirs = files.get(node.module.rpartition(".")[2], {_ALL}) or set()
            found |= {alias.name for alias in node.names} - theirs if _ALL not in theirs else set()
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names if files.get(alias.name, set()) is None}
    return found


def _bound(tree: ast.Module) -> set[str]:
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
            names.add(node.id)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.arg):
            names.add(node.arg)
        elif isinstance(node, ast.alias):
            names.add(_ALL if node.name == _ALL else (node.asname or node.name.partition(".")[0]))
        elif isinstance(node, ast.ExceptHandler | ast.MatchAs | ast.MatchStar) and node.name:
            names.add(node.name)
        elif isinstance(node, ast.MatchMapping) and node.rest:
            names.add(node.rest)
    return names
