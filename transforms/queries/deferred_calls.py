"""Calls that hand a function to a thread or to a signal: each rank runs it at a time of its own."""

from __future__ import annotations

import ast

from ..flow.values import FunctionValue
from .file import File
from .program import Program

_OTHER_PROCESSES = ("multiprocessing", "torch.multiprocessing", "concurrent.futures.ProcessPool", "concurrent.futures.process")
_BY_ALL = ("atexit.",)
"""What every rank runs once, at its end."""


def deferred_by(program: Program, file: File, function: ast.AST) -> list[tuple[File, ast.Call]]:
    """The calls that let a function run in this process beside whatever else it does."""
    value = next((v for v in file.values(function) if isinstance(v, FunctionValue)), None)
    sites = sorted(program.flow.deferred.get(value, ())) if value is not None else []
    calls = [program.call_node(site) for site in sites if program.is_written_as_call(site)]
    return [(other, call) for other, call in calls if not _runs_elsewhere(other, call)]


def _runs_elsewhere(file: File, call: ast.Call) -> bool:
    called = call.func.value if isinstance(call.func, ast.Attribute) and file.external(call.func) is None else call.func
    names = {file.external(call.func) or "", *(getattr(value, "name", "") for value in file.values(called))}
    return any(name.startswith((*_OTHER_PROCESSES, *_BY_ALL)) for name in names)
