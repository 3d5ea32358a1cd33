"""Places that one rank alone comes to, out of all that share a model's shards."""

from __future__ import annotations

import ast
import re

from .file import File
from .guards import Guard, Guards

_DIMENSIONS = "dp|tp|pp|cp|ep|sp|mp|hsdp|replicate|replica|node|group|mesh|stage|intra|inter|coordinate"
_SUBGROUP = re.compile(rf"(?i)(^|[^a-z])({_DIMENSIONS})s?([^a-z]|$)")
_MAIN = re.compile(r"(?i)rank|main|master|chief|primary|leader")
_OF_RANKS = re.compile(r"(?i)rank|gpu|proc|shard|host|worker|device|\bid\b|index|coord|pid|uuid")

_COUNTERS = re.compile(r"(?i)(^|[._])(step|epoch|iter(ation)?|it|i|global_step|os(\.path(\.join)?)?|path|str|int)$")


def one_rank_guard(guards: Guards, file: File, node: ast.AST) -> Guard | None:
    """The test that lets rank 0 alone come to a place, in its function or further out; None where that is not sure."""
    for guard, _ in guards.of(file, node):
        if _is_of_main_rank(guard) and not _has_the_same_elsewhere(guard, node):
            return guard
    return None


def _is_of_main_rank(guard: Guard) -> bool:
    statement = guard.statement
    if guard.function:
        text = " ".join(ast.unparse(d) for d in getattr(statement, "decorator_list", ()))
    elif isinstance(statement, (ast.If, ast.While)) and not _chooses_several(statement.test):
        text = ast.unparse(statement.test)
    else:
        return False
    return _MAIN.search(text) is not None and _SUBGROUP.search(text) is None


def _chooses_several(test: ast.expr) -> bool:
    """Whether a test may be met by one rank of each group: ``rank in leaders``, ``rank % 8 == 0``."""
    if any(isinstance(n, (ast.In, ast.NotIn)) for n in ast.walk(test)):
        return True
    divided = (n.left for n in ast.walk(test) if isinstance(n, ast.BinOp) and isinstance(n.op, (ast.Mod, ast.FloorDiv)))
    return any(_MAIN.search(ast.unparse(left)) for left in divided)


def _has_the_same_elsewhere(guard: Guard, node: ast.AST) -> bool:
    """Whether the other ranks do the same in the other branch."""
    statement = guard.statement
    name = _called(node)
    return isinstance(statement, ast.If) and bool(name) and any(
        _called(n) == name for other in statement.orelse for n in ast.walk(other)
    )


def _called(node: ast.AST) -> str:
    if not isinstance(node, ast.Call):
        return ""
    return node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")


def is_same_on_all_ranks(file: File, path: ast.expr) -> bool:
    """Whether every rank surely means the same file by an expression."""
    if isinstance(path, ast.Constant):
        return isinstance(path.value, str)
    if _OF_RANKS.search(ast.unparse(path)):
        return False
    names = [n for n in ast.walk(path) if isinstance(n, (ast.Name, ast.Attribute)) and isinstance(n.ctx, ast.Load)]
    return all(_is_counter(n) for n in names if not isinstance(file.parents.get(n), ast.Attribute))


def _is_counter(node: ast.expr) -> bool:
    """Whether a name is the number of a step or an epoch, or a module or function that makes paths."""
    return _COUNTERS.search(ast.unparse(node)) is not None
