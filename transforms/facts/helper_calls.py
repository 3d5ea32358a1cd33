"""What stood where a helper of the tool is called now: migrated code says to a second run what it said to the first.

A helper's own body would say more than that, and of all models at once: each of them goes through it.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable

from ..text.generated import HELPER_MODULE

_AS_GIVEN = frozenset(
    {
        "as_plain", "in_wrapper", "laid_out_like", "local_part", "on_full_model", "on_whole", "on_whole_parameters",
        "on_whole_tensors", "on_wrapper", "past_ddp", "plain_copy", "resharded", "saving_whole", "state_entry",
        "step_on_parts", "step_on_whole", "to_trace", "unwrap", "whole", "with_whole_copies", "wrapped_copy",
    }
)  # fmt: skip
"""Helpers that give what they are given, or what stands for it."""
_MEMBERS = frozenset({"as_method", "forward_method", "method_on_full"})
"""Helpers that give the member of a name."""
_METHODS = {
    "clip_model_grad_norm": "clip_grad_norm_",
    "consolidate_state_dict": "consolidate_state_dict",
    "live_state": "state_dict",
    "load_model_state": "load_state_dict",
    "load_optimizer_state": "load_state_dict",
    "load_state": "load_state_dict",
    "model_state": "state_dict",
    "named_buffers": "named_buffers",
    "named_modules": "named_modules",
    "named_parameters": "named_parameters",
    "no_gradient_sync": "no_sync",
    "optimizer_state": "state_dict",
    "register_comm_hook": "register_comm_hook",
    "state_of": "state_dict",
}
"""Helpers called in the place of a method."""


def helpers_in(body: Iterable[ast.stmt]) -> dict[str, str]:
    """The helpers that statements of a module import, by the names that they have there."""
    ours = (n for n in body if isinstance(n, ast.ImportFrom) and (n.module or "").rpartition(".")[2] == HELPER_MODULE)
    return {alias.asname or alias.name: alias.name for node in ours for alias in node.names}


def is_given_back(node: ast.AST, helpers: dict[str, str]) -> bool:
    """Whether something is in a helper already that gives it, or what stands for it."""
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and helpers.get(node.func.id) in _AS_GIVEN


def stood_for(node: ast.expr, helpers: dict[str, str]) -> ast.expr | None:
    """What a call of a helper was written for, with its arguments in it; None for anything else.

    ``helpers`` has the names under which a file imports them.
    """
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name) or not node.args:
        return None
    name, first = helpers.get(node.func.id), node.args[0]
    if name is None or isinstance(first, ast.Starred):
        return None
    if name in _AS_GIVEN:
        return first
    member = node.args[1] if len(node.args) > 1 else None
    if name in _MEMBERS and isinstance(member, ast.Constant) and isinstance(member.value, str):
        return _member(node, member.value)
    if name in _METHODS:
        return ast.copy_location(ast.Call(_member(node, _METHODS[name]), node.args[1:], node.keywords), node)
    return None


def _member(node: ast.Call, name: str) -> ast.Attribute:
    return ast.copy_location(ast.Attribute(node.args[0], name, ast.Load()), node)
