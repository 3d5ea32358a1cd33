"""Models that go through ``torch.compile``: its wrapper puts a prefix before their keys."""

from __future__ import annotations

import ast

from ..analysis.values import Value, Wrapped
from ..groups import Group
from ..migration import Migration


def is_compiled(migration: Migration, group: Group | None) -> bool:
    """Whether a model of a group is handed to ``torch.compile`` anywhere."""
    if group is None:
        return False

    compiled = migration.once("compiled", None, lambda: _compiled(migration))
    return any(isinstance(value, Wrapped) or value in group.raw for value in compiled)


def _compiled(migration: Migration) -> set[Value]:
    """What is handed to ``torch.compile``."""
    return {
        value
        for view in migration.views()
        for node in view.nodes(ast.Call)
        if node.args and view.external(node.func) == "torch.compile"
        for value in view.values(node.args[0])
    }
