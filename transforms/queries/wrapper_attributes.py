"""Attributes that are set on a wrapper, where the model in it did not see them."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from ..flow.values import Instance, Value, Wrapped
from .file import File
from .model_classes import class_of
from .program import Program


def model_reads(program: Program, values: list[Value], name: str) -> bool:
    """Whether a model that comes to a place in a wrapper reads such an attribute of its own: one whose class nothing shows
    may be of any class with a ``forward``."""
    flow = program.flow
    wrapped = [v for v in values if isinstance(v, Wrapped)]
    inner = [v for one in wrapped for v in flow.values_of(flow.field(one, "module"))]
    made = [cls for v in inner if isinstance(v, Instance) for cls in flow.ancestors(v.cls)]
    known = [found for cls in dict.fromkeys(made) if (found := class_of(program, Instance(cls, -1))) is not None]
    return any(name in _own_reads(cls) for _, cls in known or _models(program))


def is_read_off_wrapper(program: Program, name: str) -> bool:
    """Whether code reads an attribute of this name off a model in a wrapper."""
    reads = ((f, n) for f in _files(program) if name in f.source.text for n in f.nodes(ast.Attribute) if n.attr == name)
    return any(isinstance(n.ctx, ast.Load) and any(isinstance(v, Wrapped) for v in f.values(n.value)) for f, n in reads)


def _models(program: Program) -> Iterator[tuple[File, ast.ClassDef]]:
    for file in _files(program):
        for cls in file.nodes(ast.ClassDef):
            if any(isinstance(member, ast.FunctionDef) and member.name == "forward" for member in cls.body):
                yield file, cls


def _files(program: Program) -> Iterator[File]:
    return map(program.file, program.relevant_files())


def _own_reads(cls: ast.ClassDef) -> Iterator[str]:
    for method in (f for f in cls.body if isinstance(f, ast.FunctionDef) and f.args.args):
        own = method.args.args[0].arg
        for node in ast.walk(method):
            if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load) and getattr(node.value, "id", "") == own:
                yield node.attr
