"""Backwards that are told for which tensors: ``loss.backward(inputs=parameters)``."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from ..flow.values import Container, Derived, Opaque, Value
from .file import File
from .sharding import ShardingQueries

_FUNCTION = "torch.autograd.backward"
_PLACE = 5


def inputs_of_backwards(file: File, sharding: ShardingQueries) -> Iterator[ast.expr]:
    """What is given as the ``inputs`` of each backward, where parameters that are sharded may be among it."""
    for call in file.nodes(ast.Call):
        if not isinstance(call.func, ast.Attribute) or call.func.attr != "backward":
            continue
        placed = call.args[_PLACE : _PLACE + 1] if file.external(call.func) == _FUNCTION else []
        named = [keyword.value for keyword in call.keywords if keyword.arg == "inputs"]
        for given in named or placed:
            is_done = isinstance(given, ast.Call) and isinstance(given.func, ast.Name) and given.func.id == "in_graph"
            if not is_done and _may_be_sharded(file, sharding, given):
                yield given


def _may_be_sharded(file: File, sharding: ShardingQueries, given: ast.expr) -> bool:
    values = file.values(given)
    owners = [value.owner for value in values if isinstance(value, Derived)]
    if owners and len(owners) == len(values):
        return sharding.of_owners(owners).possible  # type: ignore[arg-type]
    return any(_may_hold(value) for value in values) or sharding.of(file, given).possible


def _may_hold(value: Value) -> bool:
    return isinstance(value, (Container, Derived)) or (isinstance(value, Opaque) and value.name.startswith("builtins."))
