"""Attributes that keep a process group for FSDP1's optimizer state: ``get_optimizer_state_dict`` needs none."""

from __future__ import annotations

import ast

from ..program import Program
from ..view import FileView

_TAKERS = frozenset(
    {
        "optim_state_dict", "full_optim_state_dict", "sharded_optim_state_dict", "optim_state_dict_to_load",
        "scatter_full_optim_state_dict",
    }
)  # fmt: skip


def stores_for_state(program: Program, view: FileView, statement: ast.stmt) -> list[ast.Assign]:
    """All assignments in a file of the attribute that a statement sets, where only such state reads it; else none."""
    name = _attribute_set(statement)
    if name is None:
        return []
    if not all(_reads_for_state_alone(other, name) for other in program.views_with(name)):
        return []
    stores = [node for node in view.nodes(ast.Assign) if _attribute_set(node) == name]
    plain = all(
        isinstance(store.value, (ast.Name, ast.Constant)) and view.stands_alone(store) and len(view.block_of(store)[0]) > 1
        for store in stores
    )
    return stores if plain else []


def _attribute_set(statement: ast.stmt) -> str | None:
    if not isinstance(statement, ast.Assign) or len(statement.targets) != 1:
        return None
    target = statement.targets[0]
    return target.attr if isinstance(target, ast.Attribute) and isinstance(target.value, ast.Name) else None


def _reads_for_state_alone(view: FileView, name: str) -> bool:
    reads = [n for n in view.nodes(ast.Attribute) if n.attr == name and isinstance(n.ctx, ast.Load)]
    is_spelt = any(constant.value == name for constant in view.nodes(ast.Constant))
    return not is_spelt and all(_is_group_of_state(view, read) for read in reads)


def _is_group_of_state(view: FileView, read: ast.Attribute) -> bool:
    """Whether an attribute is ``group=`` of a call that takes or places optimizer state."""
    keyword = view.parents[read]
    call = view.parents[keyword] if isinstance(keyword, ast.keyword) and keyword.arg == "group" else None
    return isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) and call.func.attr in _TAKERS
