"""Work on parameters themselves: writes into them, their freezing, and their gradients read, scaled or cleared."""

from __future__ import annotations

import ast

from ..view import FileView
from .passes import outside_name

_NO_WRITES = frozenset({"detach_", "share_memory_", "retains_grad_", "zero_grad_"})


def works_on_tensors(node: ast.AST) -> bool:
    """Whether code reads or clears gradients, or changes a tensor in place."""
    return any(
        (isinstance(inner, ast.Attribute) and (inner.attr == "grad" or _is_frozen(inner)))
        or (_changed(inner) is not None and not _adds_up(node, inner))
        for inner in ast.walk(node)
    )


def _is_frozen(node: ast.Attribute) -> bool:
    """``p.requires_grad = False``: what is gathered is frozen then, and not the shard."""
    return node.attr == "requires_grad" and isinstance(node.ctx, ast.Store)


def _adds_up(node: ast.AST, inner: ast.AST) -> bool:
    """Whether ``inner`` sums up in a name that the code around does not bind: ``loss += p.pow(2).sum()``."""
    if not isinstance(inner, ast.AugAssign) or not isinstance(inner.target, ast.Name):
        return False
    stored = [n for n in ast.walk(node) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)]
    return not any(n.id == inner.target.id and n is not inner.target for n in stored)


def written_tensor(node: ast.AST) -> ast.expr | None:
    """The tensor that a call or an assignment changes in place, or whose gradient it sets to None."""
    changed = _changed(node)
    if changed is None and isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant):
        for target in node.targets:
            if isinstance(target, ast.Attribute) and target.attr == "grad":
                return target.value
    return changed


def loop_over(view: FileView, call: ast.Call) -> ast.For | ast.AsyncFor | None:
    """The loop that goes over what a call gives, if its statement is one."""
    statement = view.statement(call)
    if isinstance(statement, (ast.For, ast.AsyncFor)) and any(inner is call for inner in ast.walk(statement.iter)):
        return statement
    return None


def _changed(node: ast.AST) -> ast.expr | None:
    if isinstance(node, ast.AugAssign):
        return node.target
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        name = node.func.attr
        if name.endswith("_") and not name.endswith("__") and name not in _NO_WRITES:
            return node.func.value
    return None


def of_gradients(view: FileView, call: ast.Call) -> bool:
    """Whether torch itself is asked to work on gradients."""
    return outside_name(view, call.func) in _OF_GRADIENTS


_OF_GRADIENTS = frozenset(
    f"torch.nn.utils.{name}"
    for name in ("clip_grad_norm_", "clip_grad_value_", "clip_grad.clip_grad_norm_", "clip_grad.clip_grad_value_")
)
