"""Settings of an optimizer that are read off its state dict: ``optimizer.state_dict()["param_groups"][0]["lr"]``."""

from __future__ import annotations

import ast

from .file import File


def groups_read(file: File, call: ast.Call | None) -> ast.Subscript | None:
    """``….state_dict()["param_groups"]`` of which one setting is read; no tensor of the state is needed for it."""
    if call is None or call.args or call.keywords:
        return None
    groups = file.parents[call]
    if not _reads(groups, call) or _key(groups) != "param_groups":
        return None
    one = file.parents[groups]
    setting = file.parents[one]
    is_setting = _reads(one, groups) and _reads(setting, one) and _key(setting) not in (None, "params")
    return groups if is_setting and isinstance(groups, ast.Subscript) else None


def _reads(node: ast.AST | None, of: ast.AST | None) -> bool:
    return isinstance(node, ast.Subscript) and node.value is of and isinstance(node.ctx, ast.Load)


def _key(node: ast.AST | None) -> object:
    return node.slice.value if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant) else None
