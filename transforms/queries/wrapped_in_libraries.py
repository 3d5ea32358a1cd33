"""Models in DDP that a library wraps once more, which takes no sharded ones: ``accelerator.prepare(model)``."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator

from ..facts.facts import NOTHING, Call
from ..facts.symbols import wraps_in_library
from ..flow.values import Container, External, Opaque, Value, Wrapped
from .file import File
from .program import Program

Place = tuple[File, ast.AST]
_WRAPS = ("prepare", "setup", "auto_model")
"""How the methods and functions are called that wrap what they are given, or begin."""


def wrapped_in_libraries(program: Program, exclude_each_other: Callable[[Place, Place], bool]) -> frozenset[int]:
    """The calls of DDP, by number, whose models come to a library that wraps them again.

    In their wrappers: a model without one may be another program's that the same function makes. ``exclude_each_other`` says
    of two places whether they are never both reached.
    """
    flow = program.flow
    sites = [site for site in flow.sites() if _wraps(program, flow.call_at(site))]
    sites = [site for site in sites if not _is_asked_for(program, flow.written_at(site))]
    handed = {(site, value) for site in sites for value in _given(program, flow.call_at(site))}
    return frozenset(
        value.site
        for site, value in handed
        if isinstance(value, Wrapped) and value.kind == "DDP"
        and not exclude_each_other(program.call_node(flow.written_at(site)), program.call_node(flow.written_at(value.site)))
    )  # fmt: skip


def _is_asked_for(program: Program, site: int) -> bool:
    """Whether a call is made only where the library's object is there: `if self.accelerator is not None`, else DDP is."""
    file, call = program.call_node(site)
    receiver = ast.unparse(call.func.value) if isinstance(call.func, ast.Attribute) else ""
    tests = (around.test for around in file.ancestors(call) if isinstance(around, ast.If | ast.IfExp))
    return bool(receiver) and any(ast.unparse(n) == receiver for test in tests for n in ast.walk(test))


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
