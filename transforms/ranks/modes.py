"""Training and evaluation mode: a rank that evaluates now, and did not before, has to come back as it was."""

from __future__ import annotations

import ast
from collections.abc import Sequence

from ..migration import Migration
from ..training.passes import calls_named
from ..view import FileView
from .evaluation import of_group

STAYS = "the other ranks would stay in evaluation mode after it"
_EVAL, _TRAIN = frozenset({"eval"}), frozenset({"train"})


def changes_mode(migration: Migration, view: FileView, statements: Sequence[ast.AST]) -> bool:
    """Whether statements, or the functions that they call, put something into training or evaluation mode."""
    return calls_named(migration, view, statements, _EVAL | _TRAIN)


def stays_in_evaluation(migration: Migration, view: FileView, statements: Sequence[ast.AST]) -> bool:
    """Whether statements put a model into evaluation mode and nothing that runs later puts it back."""
    if not calls_named(migration, view, statements, _EVAL) or calls_named(migration, view, statements, _TRAIN):
        return False
    place = (view, statements[0])
    flow = migration.program.flow
    for number, call in enumerate(flow.calls):
        if call.method != "train":
            continue
        values = flow.values_of(call.function)
        if not any(of_group(group, value) for group in migration.groups.all for value in values):
            continue
        for meeting, train, other in migration.order.meetings(migration.program.call_node(number), place):
            loops = {node for node in meeting.ancestors(other) if isinstance(node, (ast.For, ast.While))}
            if meeting.source.span(train)[0] > meeting.source.span(other)[0] or loops & {*meeting.ancestors(train)}:
                return False
    return True
