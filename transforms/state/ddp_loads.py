"""Loads that keep their own method for models that stay under DDP: their files have their own names for everything."""

from __future__ import annotations

import ast
from collections.abc import Sequence

from ..analysis.symbols import DDP
from ..migration import Migration
from ..rule import Outcome
from ..text.patches import Part
from ..view import FileView
from .writing import in_brackets


def beside_own_load(
    migration: Migration, outcome: Outcome, view: FileView, call: ast.Call, model: Part, loaded: Sequence[Part]
) -> tuple[Part, ...]:
    """What takes the place of a load: the load as it is for DDP, ``loaded`` for the others.

    A statement of its own becomes two branches, anything else a choice.
    """
    test = ("isinstance(", model, f", {migration.use(outcome, view, DDP, call)})")
    own = view.text(call)
    statement = view.statement(call)
    if isinstance(statement, ast.Expr) and statement.value is call and view.stands_alone(statement):
        indent = view.indent(statement)
        deeper = [part.replace("\n", "\n    ") if isinstance(part, str) else part for part in loaded]
        own = own.replace("\n", "\n    ")
        return ("if ", *test, f":\n{indent}    {own}\n{indent}else:\n{indent}    ", *deeper)
    return in_brackets(view, call, (own, " if ", *test, " else ", *loaded))
