"""Whether the state of an optimizer may be read before its first step.

``get_optimizer_state_dict`` fills the state of a fresh optimizer by a step with learning rate 0, which Adam counts:
the training that follows differs.
"""

from __future__ import annotations

import ast

from ..analysis.values import Optimizer
from ..groups import Group
from ..migration import Migration
from ..view import FileView
from .reads import StateRead


def may_precede_first_step(migration: Migration, read: StateRead) -> bool:
    """Whether a read runs before every step of the group's optimizers, and no condition like ``step > 0`` says not."""
    if read.group is None:
        return False
    place = (read.view, read.call)
    relations = {migration.order.relation(place, step) for step in steps_of(migration, read.group)}
    if "after" in relations or not relations & {"before", "both"}:
        return False
    return not _is_past_the_first(migration, read.view, read.call, 0)


def steps_of(migration: Migration, group: Group) -> list[tuple[FileView, ast.Call]]:
    """``optimizer.step()`` and ``scaler.step(optimizer)`` of a group."""

    def find() -> list[tuple[FileView, ast.Call]]:
        program = migration.program
        found: list[tuple[FileView, ast.Call]] = []
        for number, call in enumerate(program.flow.calls):
            if call.method != "step":
                continue
            values = [v for variable in (call.function, *call.arguments) for v in program.flow.values_of(variable)]
            if any(isinstance(v, Optimizer) and v in group.optimizers for v in values):
                found.append(program.call_node(number))
        return found

    return migration.once("optimizer steps", group, find)


def _is_past_the_first(migration: Migration, view: FileView, node: ast.AST, depth: int) -> bool:
    """Whether a condition around a place, or around the calls that lead to it, leaves out the first round."""
    child = node
    for ancestor in view.ancestors(node):
        if isinstance(ancestor, ast.If) and child in ancestor.body and any(map(_is_not_first, ast.walk(ancestor.test))):
            return True
        if isinstance(ancestor, (ast.FunctionDef, ast.AsyncFunctionDef)):
            callers = migration.program.callers(view, ancestor) if depth < 3 else []
            return bool(callers) and all(_is_past_the_first(migration, *caller, depth + 1) for caller in callers)
        child = ancestor
    return False


def _is_not_first(test: ast.AST) -> bool:
    """``step > 0``, ``step != 0``, ``(step + 1) % every == 0`` …"""
    if not isinstance(test, ast.Compare) or len(test.ops) != 1:
        return False
    left, operator, right = test.left, test.ops[0], test.comparators[0]
    if isinstance(left, ast.BinOp) and isinstance(left.op, ast.Mod) and isinstance(operator, ast.Eq):
        counted = left.left
        return isinstance(counted, ast.BinOp) and isinstance(counted.op, ast.Add)
    number = right.value if isinstance(right, ast.Constant) else None
    if isinstance(operator, ast.GtE):
        return number == 1
    return isinstance(operator, (ast.Gt, ast.NotEq)) and number == 0
