"""Methods of models whose code is not seen: by their names they compute, so they have to gather parameters like forward."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from ..analysis.values import Instance, Wrapped
from ..groups import Group
from ..migration import Migration
from ..state.reads import last_name
from ..view import FileView
from .in_scope import means_a_model

_COMPUTES = re.compile(
    r"^(generate|predict|infer|encode|decode|embed|sample|extract|translate|transcribe|caption|score|log_prob|evaluate)"
    r"|(_step|_loss|_logits)$|^forward_|^compute_"
)


def is_unseen(group: Group) -> bool:
    """Whether no class of the repository is what a group's model may be."""
    return not any(isinstance(value, Instance) for value in group.raw)


def unseen_method_calls(migration: Migration) -> Iterator[tuple[FileView, ast.Call, Group]]:
    """Calls of such methods on the model of a group that DDP wrapped, behind its ``.module`` or where it is unwrapped."""
    for view in migration.views():
        for node in view.nodes(ast.Call):
            if not isinstance(node.func, ast.Attribute) or not _COMPUTES.search(node.func.attr):
                continue
            group = _group_of(migration, view, node.func.value)
            if group is None or "DDP" not in group.kinds or not is_unseen(group) or migration.program.callees(view, node):
                continue
            order = [migration.order.relation((view, node), (wrap.view, wrap.node)) for wrap in group.wraps]
            if any(relation != "before" for relation in order):
                yield view, node, group


def _group_of(migration: Migration, view: FileView, receiver: ast.expr) -> Group | None:
    """The group whose unwrapped model a receiver is."""
    if isinstance(receiver, ast.Attribute) and receiver.attr == "module":
        return migration.groups.of([value for value in view.values(receiver.value) if isinstance(value, Wrapped)])
    values = view.values(receiver)
    group = migration.groups.of(values)
    models = [value for value in values if group is not None and value in group.raw]
    return group if models and means_a_model(models, last_name(receiver)) else None
