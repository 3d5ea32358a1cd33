"""Models that hold wrapped modules among their parts: their parameters are sharded, too."""

from __future__ import annotations

from collections.abc import Iterable

from .analysis.values import Container, Instance, Opaque, Value, Wrapped
from .program import Program


def holders_of(program: Program, wraps: Iterable[Wrapped]) -> dict[Wrapped, list[Instance]]:
    """For each wrap the models of the repository that have it as a part, at any depth of their own modules."""
    owners: dict[Value, list[Value]] = {}
    flow = program.flow
    for (number, _), variable in flow.fields.items():
        owner = flow.values[number]
        if isinstance(owner, (Container, Opaque)) or _is_model(program, owner):
            for value in flow.values_of(variable):
                owners.setdefault(value, []).append(owner)
    return {wrap: _above(program, wrap, owners) for wrap in wraps}


def _above(program: Program, wrap: Wrapped, owners: dict[Value, list[Value]]) -> list[Instance]:
    found: list[Instance] = []
    seen: set[Value] = set()
    pending: list[Value] = list(owners.get(wrap, ()))
    while pending:
        value = pending.pop()
        if value in seen:
            continue
        seen.add(value)
        if isinstance(value, Instance):
            found.append(value)
        pending.extend(owners.get(value, ()))
    return found


def _is_model(program: Program, value: Value) -> bool:
    if not isinstance(value, Instance):
        return False
    return any(name.startswith("torch.nn.") for name in program.flow.external_bases(value.cls))
