"""Statements that FSDP1 and DDP carry out by themselves when they wrap, written out before fully_shard."""

from __future__ import annotations

import ast

from ..analysis.scopes import dotted_path
from ..view import FileView
from .plan import MODEL, Code, ShardingPlan, code, deeper


def broadcast(plan: ShardingPlan, condition: Code | None = None, skips_shards: bool = False, ignored: str = "") -> Code:
    """Every rank gets rank 0's parameters and buffers; without it each contributes its own rows of the model.

    ``skips_shards`` leaves out parameters that an earlier call has broadcast and sharded. ``ignored`` names the set of
    those that FSDP1 leaves alone: every rank keeps its own of them, though not of the buffers beside them.
    """
    function = plan.name("torch.distributed.broadcast")
    statement: Code = (f"{function}(tensor.detach(), src=0)",)
    if ignored:
        statement = under((f"tensor not in {ignored}",), statement)
    if skips_shards:
        statement = under((f"not isinstance(tensor, {plan.name('torch.distributed.tensor.DTensor')})",), statement)
    loop = code(
        "for tensor in [*", MODEL, ".parameters(), *", MODEL, ".buffers()]:\n    ", deeper(statement)
    )  # fmt: skip
    return loop if condition is None else under(condition, loop)


def under(condition: Code, statement: Code) -> Code:
    """A statement in an ``if``."""
    return code("if ", condition, ":\n    ", deeper(statement))


def move_to(device: Code) -> Code:
    """The model onto its device: a collective of NCCL needs it there, and ignored parameters are not moved."""
    return code(MODEL, ".to(", device, ")")


def is_on_device(view: FileView, call: ast.Call, model: ast.expr) -> bool:
    """Whether a statement that always runs before a wrap has put the model on a device already."""
    if isinstance(model, ast.Call) and _moves(view, model):
        return True
    path = dotted_path(model)
    scope = view.function(call) or view.tree
    blocks = [view.block_of(a)[0] for a in view.ancestors(call) if isinstance(a, ast.stmt) and a is not scope]
    for node in ast.walk(scope):
        if not isinstance(node, ast.Call) or node.lineno >= call.lineno or not _moves(view, node):
            continue
        statement = view.statement(node)
        if not any(statement in block for block in blocks):
            continue
        assert isinstance(node.func, ast.Attribute)
        targets = statement.targets if isinstance(statement, ast.Assign) else []
        if dotted_path(node.func.value) == path or any(dotted_path(target) == path for target in targets):
            return True
    return False


def _moves(view: FileView, call: ast.Call) -> bool:
    """``.cuda()`` and ``.to(device)``, not ``.to(torch.bfloat16)``."""
    if not isinstance(call.func, ast.Attribute) or call.func.attr not in ("to", "cuda", "xpu", "npu"):
        return False
    if call.func.attr != "to":
        return True
    devices = [*call.args, *(k.value for k in call.keywords if k.arg == "device")]
    return any(
        not (view.external(device) or "").startswith("torch.") or view.values(device) == []
        for device in devices
    )
