"""Models that are saved as objects, not as state dicts: alone, or among other things in a dict or list."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from ..flow.values import Annotated, Instance, Opaque, Wrapped
from .assignments import assigned_values
from .file import File
from .sharding import ShardingQueries
from .spelling import given_for_parameter

SAVES = ("torch.save", "pickle.dump", "pickle.dumps", "cloudpickle.dump", "cloudpickle.dumps", "dill.dump", "joblib.dump")
"""Functions whose first argument is pickled."""
_MAKERS = frozenset({"builtins.dict", "builtins.list", "builtins.tuple", "collections.OrderedDict"})
_DEEPEST = 3


def saved_models(sharding: ShardingQueries, file: File, value: ast.expr, depth: int = 0) -> Iterator[tuple[File, ast.expr]]:
    """The expressions for sharded models in what is saved."""
    if isinstance(value, ast.Dict):
        parts = [part for part in value.values if part is not None]
    elif isinstance(value, (ast.List, ast.Tuple)):
        parts = value.elts
    elif isinstance(value, ast.Call) and file.external(value.func) in _MAKERS:
        parts = [*value.args, *(keyword.value for keyword in value.keywords)]
    else:
        if _is_model(sharding, file, value):
            yield file, value
        elif isinstance(value, (ast.Name, ast.Attribute)) and depth < _DEEPEST:
            sources = [(file, source) for source in assigned_values(file, value)]
            for owner, source in [*sources, *given_for_parameter(file, value)]:
                yield from saved_models(sharding, owner, source, depth + 1)
        return
    for part in parts:
        yield from saved_models(sharding, file, part, depth)


def _is_model(sharding: ShardingQueries, file: File, value: ast.expr) -> bool:
    values = file.values(value)
    return bool(sharding.of_values(values).wrappers) and any(
        isinstance(v, (Wrapped, Annotated, Instance, Opaque)) for v in values
    )
