"""Identities of parameters: ``id(p)``, by which code remembers them where tensors cannot be compared."""

from __future__ import annotations

import ast

from ..flow.values import Derived
from .answers import Sharding
from .file import File
from .sharding import ShardingQueries

IDENTITY = "builtins.id"


def parameters_identified(sharding: ShardingQueries, file: File, node: ast.AST) -> Sharding | None:
    """Whether ``id(p)``, or the ``id`` of ``map(id, model.parameters())``, is asked of parameters of a model; None if not."""
    call = node if isinstance(node, ast.Call) else file.parents[node]
    if not isinstance(call, ast.Call) or not call.args:
        return None
    given = call.args[-1]
    values = [*file.values(given), *(value for held in file.held_values(given) for value in held)]
    found = sharding.of_owners([v.owner for v in values if isinstance(v, Derived) and v.kind == "parameters"])  # type: ignore[arg-type]
    return found if found.wrappers else None


def takes_identities(sharding: ShardingQueries, file: File) -> bool:
    """Whether code in a file takes identities of parameters of models that are sharded somewhere."""
    names = (n for n in file.names_by_id.get("id", ()) if isinstance(n.ctx, ast.Load))
    places = (file.parents[n] if getattr(file.parents[n], "func", None) is n else n for n in names)
    return any(parameters_identified(sharding, file, place) is not None for place in places)
