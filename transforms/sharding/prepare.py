"""Statements that FSDP1 and DDP carry out by themselves when they wrap, written out before fully_shard."""

from __future__ import annotations

import ast

from ..scopes import dotted_path
from ..view import FileView
from .plan import MODEL, Code, ShardingPlan, code


def broadcast(plan: ShardingPlan, condition: Code | None = None) -> Code:
    """Every rank gets rank 0's parameters and buffers; without it each contributes its own rows of the model."""
    function = plan.name("torch.distributed.broadcast")
    loop = code(
        "for tensor in [*", MODEL, ".parameters(), *", MODEL, f".buffers()]:\n    {function}(tensor.detach(), src=0)"
    )  # fmt: skip
    return loop if condition is None else under(condition, loop)


def under(condition: Code, statement: Code) -> Code:
    """A statement in an ``if``."""
    deeper = tuple(part.replace("\n", "\n    ") if isinstance(part, str) else part for part in statement)
    return code("if ", condition, ":\n    ", deeper)


def move_to(device: Code) -> Code:
    """The model onto its device: a collective of NCCL needs it there, and ignored parameters are not moved."""
    return code(MODEL, ".to(", device, ")")


def is_on_device(view: FileView, call: ast.Call, model: ast.expr) -> bool:
    """Whether the text before a wrap has put the model on a device already."""
    if isinstance(model, ast.Call) and isinstance(model.func, ast.Attribute) and model.func.attr in _MOVES:
        return True
    path = dotted_path(model)
    scope = view.function(call) or view.tree
    for node in ast.walk(scope):
        if not isinstance(node, ast.Call) or node.lineno >= call.lineno or not isinstance(node.func, ast.Attribute):
            continue
        if node.func.attr not in _MOVES:
            continue
        if dotted_path(node.func.value) == path:
            return True
        statement = view.statement(node)
        if isinstance(statement, ast.Assign) and any(dotted_path(t) == path for t in statement.targets):
            return True
    return False


_MOVES = frozenset({"to", "cuda", "xpu", "npu"})
