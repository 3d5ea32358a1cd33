"""Parameters taken out of what holds them, by ``next``, an index or a name of their own, and computed with."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from .file import File
from .local_names import loop_of
from .parameter_reads import is_read_through
from .reshaped_parameters import PARAMETERS_OF, is_in_module_or_optimizer, model_taken_apart, parameter_owners
from .sharding import ShardingQueries


def parameters_picked(file: File, sharding: ShardingQueries) -> Iterator[tuple[ast.expr, ast.expr]]:
    """Each such parameter, with a model that its function takes apart or names, or itself. Loops over parameters are none."""
    for node in file.nodes(ast.Name, ast.Subscript, ast.Call):
        if isinstance(node, ast.Name | ast.Subscript) and not isinstance(node.ctx, ast.Load):
            continue
        owners = parameter_owners(file, node)
        if not owners or not sharding.of_owners(owners).wrappers:  # type: ignore[arg-type]
            continue
        if isinstance(file.parents[node], ast.Subscript):
            continue  # perhaps a list of them; the item is asked about
        if is_read_through(file, node) and not _is_of_loop(file, node) and not is_in_module_or_optimizer(file, sharding, node):
            yield node, model_taken_apart(file, sharding, node) or _model_named(file, sharding, node) or node


def _model_named(file: File, sharding: ShardingQueries, node: ast.expr) -> ast.expr | None:
    """A sharded model that the function around a place names: that of ``model.head.weight`` in a list that is written out."""
    scope = file.function(node) or file.tree
    for named in (n for n in ast.walk(scope) if isinstance(n, ast.Name | ast.Attribute) and isinstance(n.ctx, ast.Load)):
        is_made_here = any(isinstance(part, ast.Call) for part in ast.walk(named))
        if not is_made_here and sharding.of(file, named).wrappers:
            return named
    return None


def _is_of_loop(file: File, node: ast.expr) -> bool:
    """Whether a name is that of a loop over the parameters of a model."""
    loop = loop_of(file, node) if isinstance(node, ast.Name) else None
    return loop is not None and any(isinstance(n, ast.Attribute) and n.attr in PARAMETERS_OF for n in ast.walk(loop.iter))
