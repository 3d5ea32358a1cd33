"""Parts of parameters and gradients that are written by an index: ``grad[i] = 0``, ``p.data[a:b].fill_(1)``."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from ..flow.values import Derived
from .file import File
from .own_parameters import is_own_parameter
from .sharding import Sharding, ShardingQueries

_SHARDED = frozenset({"parameters", "gradients"})

Written = tuple[ast.stmt, ast.Subscript, Sharding]


def items_written(file: File, sharding: ShardingQueries) -> Iterator[Written]:
    """Statements that write a part, the expression for it, and what the tensor has to do with wrapped models."""
    for statement in file.nodes(ast.Assign, ast.AugAssign, ast.Expr):
        part = _part(statement)
        if part is None:
            continue
        owners = [v.owner for v in file.values(part.value) if isinstance(v, Derived) and v.kind in _SHARDED and not v.pairs]
        found = sharding.of_owners(owners)  # type: ignore[arg-type]
        if found.wrappers and not is_own_parameter(sharding, file, part.value):
            yield statement, part, found


def _part(statement: ast.stmt) -> ast.Subscript | None:
    target = None
    if isinstance(statement, ast.Assign) and len(statement.targets) == 1:
        (target,) = statement.targets
    elif isinstance(statement, ast.AugAssign):
        target = statement.target
    elif isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call):
        method = statement.value.func
        is_in_place = isinstance(method, ast.Attribute) and method.attr.endswith("_") and not method.attr.endswith("__")
        target = method.value if is_in_place else None  # type: ignore[union-attr]
    return target if isinstance(target, ast.Subscript) else None
