"""Parameters that may learn from some time after the wrap on."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable

from ..flow.values import Derived
from .file import File
from .order import is_before_wrap
from .program import Program
from .sharding import ShardingQueries


def may_unfreeze_later(program: Program, paths: Iterable[str], is_before: Callable[[File, ast.AST], bool]) -> bool:
    """Whether some of these files switch ``requires_grad`` on at a place that is not surely in front of all wraps."""
    for file in map(program.file, paths):
        if "requires_grad" not in file.source.text:
            continue
        for node in file.nodes(ast.Assign, ast.Call):
            if _switches_on(node) and not is_before(file, node):
                return True
    return False


def are_frozen_in_turn(sharding: ShardingQueries, paths: Iterable[str], is_before: Callable[[File, ast.AST], bool]) -> bool:
    """Whether models that were in FSDP1 are switched on and off behind the wrap, as a critic is while a generator learns."""
    found: set[bool] = set()
    for file in map(sharding.program.file, paths):
        for node in file.nodes(ast.Assign, ast.Call) if "requires_grad" in file.source.text else ():
            switched = _switched(node)
            if switched is None or is_before(file, node):
                continue
            owners = [v.owner for v in file.values(switched[0]) if isinstance(v, Derived)]
            asked = (sharding.of(file, switched[0]), sharding.of_owners(owners))  # type: ignore[arg-type]
            known = next((one for one in asked if "fsdp1" in one.wrappers), None)
            if known is not None and not is_before_wrap(sharding.program, file, node, known):
                found |= switched[1]
    return len(found) == 2


def _switched(node: ast.AST) -> tuple[ast.expr, set[bool]] | None:
    """What is switched on or off at a node, and which of both it may be."""
    if isinstance(node, ast.Assign):
        target = next((t for t in node.targets if isinstance(t, ast.Attribute) and t.attr == "requires_grad"), None)
        return (target.value, _said(node.value)) if target is not None else None
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "requires_grad_":
        given = [*node.args, *(keyword.value for keyword in node.keywords)]
        return node.func.value, _said(given[0]) if given else {True}
    return None


def _said(value: ast.expr) -> set[bool]:
    return {bool(value.value)} if isinstance(value, ast.Constant) else {True, False}


def _switches_on(node: ast.AST) -> bool:
    switched = _switched(node)
    return switched is not None and True in switched[1]
