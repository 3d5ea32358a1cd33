"""Models in DDP that a library wraps once more, which takes no sharded ones: ``accelerator.prepare(model)``."""

from __future__ import annotations

from collections.abc import Iterator

from ..facts.facts import NOTHING, Call
from ..facts.symbols import wraps_in_library
from ..flow.values import Container, External, Opaque, Value, Wrapped
from .program import Program

_WRAPS = ("prepare", "setup", "auto_model")
"""How the methods and functions are called that wrap what they are given, or begin."""


def wrapped_in_libraries(program: Program) -> frozenset[int]:
    """The calls of DDP, by number, whose models come to a library that wraps them again.

    In their wrappers: a model without one may be another program's that the same function makes.
    """
    flow = program.flow
    handed = (value for call in map(flow.call_at, flow.sites()) if _wraps(program, call) for value in _given(program, call))
    return frozenset(value.site for value in handed if isinstance(value, Wrapped) and value.kind == "DDP")


def _wraps(program: Program, call: Call) -> bool:
    values = program.flow.values_of(call.function)
    if call.method is not None:
        return call.method.startswith(_WRAPS) and any(isinstance(v, Opaque) and wraps_in_library(v.name) for v in values)
    names = (v.name for v in values if isinstance(v, External) and wraps_in_library(v.name))
    return any(name.rpartition(".")[2].startswith(_WRAPS) for name in names)


def _given(program: Program, call: Call) -> Iterator[Value]:
    flow = program.flow
    for variable in (*call.arguments, *(argument for _, argument in call.keywords)):
        for value in flow.values_of(variable) if variable != NOTHING else ():
            held = flow.fields.get((flow.ids[value], "[any]")) if isinstance(value, Container) else None
            yield from (value,) if held is None else flow.values_of(held)
