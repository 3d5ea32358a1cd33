"""Averages of models that a library keeps, and classes of the repository that inherit theirs."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase

from ..facts.symbols import AVERAGES
from ..flow.values import ClassValue, Instance, Opaque, Value
from .file import File
from .sharding import ShardingQueries


def averages_made(file: File, sharding: ShardingQueries) -> Iterator[ast.Call]:
    """Calls that make averages of classes of the repository which inherit a library's: its constructor copies the model."""
    for call in file.nodes(ast.Call):
        if any(_is_average(sharding, value) for value in file.called_values(call) if isinstance(value, ClassValue)):
            yield call


def _is_average(sharding: ShardingQueries, cls: ClassValue) -> bool:
    bases = sharding.program.flow.external_bases(cls)
    return any(fnmatchcase(base, pattern) for base in bases for pattern in AVERAGES)


def updates_average(sharding: ShardingQueries, values: Sequence[Value], name: str) -> bool:
    """Whether a method updates an average of a model that a library keeps, or may: ``update_parameters`` says it by itself."""
    own = [v.cls for v in values if isinstance(v, Instance)]
    inherits = bool(own) and all(_is_average(sharding, cls) and not sharding.program.flow.has_member(cls, name) for cls in own)
    if name == "update_parameters" and (inherits or not own):
        return True
    names = [v.name for v in values if isinstance(v, Opaque)] if name in ("update", "set", "update_parameters") else []
    return any(fnmatchcase(made_by, pattern) for made_by in names for pattern in AVERAGES)
