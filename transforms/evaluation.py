"""Forwards of a model: whether it is evaluated, and which functions run it."""

from __future__ import annotations

import ast

from .groups import Group
from .migration import Migration
from .patches import Part
from .rule import Outcome
from .values import Annotated, FunctionValue, Value, Wrapped
from .view import FileView

_RUNS = frozenset({"generate", "forward", "__call__"})


def is_evaluated(migration: Migration, group: Group | None) -> bool:
    """Whether a group's model is put into evaluation mode anywhere.

    After a forward without a backward the root (and every unit with ``reshard_after_forward=False``) keeps whole,
    plain parameters registered; what asks for the sharded ones then finds the wrong ones.
    """
    if group is None:
        return True

    def find() -> bool:
        flow = migration.program.flow
        return any(
            call.method == "eval" and any(_of_group(group, value) for value in flow.values_of(call.function))
            for call in flow.calls
        )

    return migration.once("is evaluated", group, find)


def reshard_lines(
    migration: Migration, outcome: Outcome, view: FileView, model: Part, indent: str, node: ast.AST
) -> list[Part]:
    """Statements that put every unit of a model back to its shards."""
    name = migration.use(outcome, view, "torch.distributed.fsdp.FSDPModule", node)
    unit = view.free_name(node, "module")
    return [
        f"{indent}# a forward without a backward leaves whole parameters behind\n",
        f"{indent}for {unit} in ",
        model,
        f".modules():\n{indent}    if isinstance({unit}, {name}):\n{indent}        {unit}.reshard()\n",
    ]


def runs_of(migration: Migration, group: Group) -> set[int]:
    """Calls (by number) that run a group's model, themselves or through functions of the repository."""

    def find() -> set[int]:
        program = migration.program
        flow = program.flow
        found: set[int] = set()
        for number, call in enumerate(flow.calls):
            runs = call.method is None or call.method in _RUNS
            if runs and any(_of_group(group, value) for value in flow.values_of(call.function)):
                found.add(number)
        pending = list(found)
        while pending:
            number = pending.pop()
            call = flow.calls[number]
            if call.owner < 0:
                continue
            for site in flow.called.get(FunctionValue(flow.file_of_call(number), call.owner), ()):
                if site not in found:
                    found.add(site)
                    pending.append(site)
        return found

    return migration.once("runs", group, find)


def _of_group(group: Group, value: Value) -> bool:
    if value in group.raw:
        return True
    return isinstance(value, (Wrapped, Annotated)) and any(wrap.value == value for wrap in group.wraps)
