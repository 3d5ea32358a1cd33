"""The norm that ``clip_grad_norm_`` returns: a DTensor where the model is sharded, to be gathered before use."""

from __future__ import annotations

import ast

from ..migration import Migration
from ..rule import Outcome
from ..sites import Site
from ..text.patches import Old, Part, Patch
from ..view import FileView
from .conditions import needs_guard

CLIP = "torch.nn.utils.clip_grad_norm_"
WHY = "the norm of sharded gradients is a DTensor"
_DTENSOR = "torch.distributed.tensor.DTensor"


def is_used(view: FileView, call: ast.Call) -> bool:
    """Whether anything is done with what a call returns."""
    return not isinstance(view.parents[call], ast.Expr)


def gather_norm(site: Site, migration: Migration, outcome: Outcome, call: ast.Call) -> bool:
    """Makes a plain tensor of the norm that ``call`` returns; False where there is no place for the statements.

    Where a plain model comes by as well the norm may be a plain tensor already, so its type is looked at.
    """
    view = site.view
    if not needs_guard(site, call):
        outcome.patches.append(view.replace(call, (view.keep(call), ".full_tensor()"), WHY))
        return True
    statement = view.statement(call)
    if not view.stands_alone(statement):
        return False
    dtensor = migration.use(outcome, view, _DTENSOR, call)
    indent = view.indent(statement)
    if isinstance(statement, ast.Assign) and statement.value is call and len(statement.targets) == 1:
        target = statement.targets[0]
        if isinstance(target, (ast.Name, ast.Attribute)):
            outcome.patches.append(view.insert_after(statement, _gather(view.text(target), dtensor, indent), WHY))
            return True
    if not _runs_first(view, call, statement):
        return False
    name = view.free_name(call, "total_norm")
    start = view.source.span(statement)[0]
    begin, end = view.source.span(call)
    parts: list[Part] = [f"{name} = ", view.keep(call), "\n", *_gather(name, dtensor, indent), indent]
    outcome.patches.append(Patch(view.path, start, end, (*parts, Old(start, begin), name), WHY))
    return True


def _gather(name: str, dtensor: str, indent: str) -> list[Part]:
    return [f"{indent}if isinstance({name}, {dtensor}):\n{indent}    {name} = {name}.full_tensor()\n"]


def _runs_first(view: FileView, call: ast.Call, statement: ast.stmt) -> bool:
    """Whether a call runs exactly once, when its statement does."""
    if not isinstance(statement, (ast.Assign, ast.AnnAssign, ast.AugAssign, ast.Expr, ast.Return)):
        return False
    branching = (ast.IfExp, ast.BoolOp, ast.Lambda, ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
    for ancestor in view.ancestors(call):
        if ancestor is statement:
            return True
        if isinstance(ancestor, branching):
            return False
    return False
