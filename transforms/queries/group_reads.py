"""Settings of an optimizer, off its groups or its state dict: ``optimizer.state_dict()["param_groups"][0]["lr"]``."""

from __future__ import annotations

import ast

from .file import File
from .local_values import local_value


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


_OF_NUMBERS = frozenset({"sum", "min", "max", "len", "float", "int", "round", "abs", "list", "sorted", "set"})


def is_setting(file: File, node: ast.AST, depth: int = 4) -> bool:
    """Whether an expression is a number from a group of an optimizer, a count of steps, or computed from such alone."""
    if isinstance(node, ast.Constant):
        return True
    if isinstance(node, ast.Subscript) and isinstance(_key(node), str):
        return _key(node) == "step" or (_key(node) != "params" and _is_group(file, node.value))
    if isinstance(node, ast.BinOp | ast.UnaryOp | ast.List | ast.Tuple):
        return all(is_setting(file, part, depth) for part in ast.iter_child_nodes(node) if isinstance(part, ast.expr))
    if isinstance(node, ast.ListComp | ast.GeneratorExp | ast.SetComp):
        return is_setting(file, node.elt, depth)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in _OF_NUMBERS:
        return bool(node.args) and all(is_setting(file, part, depth) for part in node.args)
    if isinstance(node, ast.Name) and depth and (assigned := local_value(file, node)) is not None:
        return is_setting(file, assigned.value, depth - 1)
    return False


def _is_group(file: File, node: ast.expr) -> bool:
    """Whether an expression is one of ``optimizer.param_groups``."""
    if isinstance(node, ast.Subscript):
        return isinstance(node.value, ast.Attribute) and node.value.attr == "param_groups"
    loops = (n for n in file.nodes(ast.For, ast.comprehension) if isinstance(node, ast.Name) and _binds(n.target, node.id))
    return any(isinstance(n, ast.Attribute) and n.attr == "param_groups" for loop in loops for n in ast.walk(loop.iter))


def _binds(target: ast.expr, name: str) -> bool:
    return any(isinstance(n, ast.Name) and n.id == name for n in ast.walk(target))


def _reads(node: ast.AST | None, of: ast.AST | None) -> bool:
    return isinstance(node, ast.Subscript) and node.value is of and isinstance(node.ctx, ast.Load)


def _key(node: ast.AST | None) -> object:
    return node.slice.value if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant) else None
