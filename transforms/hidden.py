"""What rank guards keep from some ranks."""

from __future__ import annotations

import ast
from dataclasses import dataclass

from .flow.values import Value
from .queries.file import File
from .sites import Site


@dataclass(frozen=True, eq=False)
class Hidden:
    """One thing that a guard keeps from some ranks.

    ``thing`` is an expression, good at the guard, for the model or optimizer that it works on, or for what holds it; None
    where there is no such expression. ``site`` is set for what has a site of its own; ``calls`` are the calls that lead
    from the guard to it, none if it stands behind the guard itself. ``known`` says whether a sharded model or its
    optimizer is known to come there, ``model`` how the thing is spelled at its own place; ``many`` that ``calls`` are one way
    of more than are told apart. ``is_kept``: nothing is seen to work on it here, but code out of sight gets what keeps it.
    ``objects``: the sharded models and optimizers that it can be; empty where there may be others. ``is_deferred``: a thread or
    a signal comes to it, and nothing can be held for that.
    """

    file: File
    node: ast.AST
    thing: str | None
    site: Site | None
    calls: tuple[tuple[File, ast.Call], ...] = ()
    known: bool = True
    model: ast.expr | None = None
    many: bool = False
    is_kept: bool = False
    objects: frozenset[Value] = frozenset()
    is_deferred: bool = False

    @property
    def is_held(self) -> bool:
        """Whether something has to be held whole for it: what nothing is known of, beside the guard, is of some ranks alone."""
        return not self.is_deferred and (self.thing is not None or self.known or bool(self.calls))
