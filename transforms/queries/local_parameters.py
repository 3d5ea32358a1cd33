"""Parameters in variables of a function that wraps their model: sharding puts others in the model, and no name follows."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from ..flow.values import Derived, Value, Wrapped
from .file import File
from .sharding import ShardingQueries


def parameters_left_behind(file: File, sharding: ShardingQueries) -> Iterator[ast.Attribute]:
    """``net.head.weight`` of ``last = net.head.weight``, where a wrap of ``net`` stands between it and a use of ``last``."""
    for assign in file.nodes(ast.Assign):
        value, targets = assign.value, assign.targets
        if not isinstance(value, ast.Attribute) or len(targets) != 1 or not isinstance(targets[0], ast.Name):
            continue
        owners = {v.owner for v in file.values(value) if isinstance(v, Derived) and v.kind == "parameters" and not v.pairs}
        if owners and not owners.isdisjoint(_wrapped_before_use(file, sharding, assign, targets[0])):
            yield value


def _wrapped_before_use(file: File, sharding: ShardingQueries, assign: ast.Assign, name: ast.Name) -> Iterator[Value]:
    """What is wrapped, with its parts, behind an assignment to a name and in front of the last use of that."""
    function = file.function(assign)
    own = [n for n in file.names_by_id.get(name.id, ()) if file.function(n) is function and n.lineno > assign.lineno]
    if function is None or not own or any(not isinstance(n.ctx, ast.Load) for n in own):
        return
    last = max(n.lineno for n in own)
    for call in (n for n in ast.walk(function) if isinstance(n, ast.Call) and assign.lineno < n.lineno < last):
        yield from _wrapped_by(file, sharding, call)


def _wrapped_by(file: File, sharding: ShardingQueries, call: ast.Call) -> Iterator[Value]:
    flow = file.program.flow
    for made in (v for v in file.values(call) if isinstance(v, Wrapped) and not sharding.kept(v)):
        variable = flow.fields.get((flow.ids[made], "module"))
        yield from sharding.with_parts(flow.values_of(variable)) if variable is not None else ()
