"""Models that go through ``torch.compile``: its wrapper puts a prefix before their keys."""

from __future__ import annotations

import ast

from ..analysis.values import Wrapped
from ..groups import Group
from ..migration import Migration


def is_compiled(migration: Migration, group: Group | None) -> bool:
    """Whether a model of a group is handed to ``torch.compile`` anywhere."""
    if group is None:
        return False

    def find() -> bool:
        return any(
            isinstance(node, ast.Call)
            and view.external(node.func) == "torch.compile"
            and bool(node.args)
            and any(isinstance(v, Wrapped) or v in group.raw for v in view.values(node.args[0]))
            for view in migration.views()
            for node in ast.walk(view.tree)
        )

    return migration.once("is compiled", group, find)
