"""Objects with a ``.module`` of their own: averages of models that libraries keep."""

from __future__ import annotations

import ast
import re
from fnmatch import fnmatchcase

from ..facts.symbols import AVERAGES
from ..flow.library import NAMESPACES
from ..flow.values import Constant, Opaque, Unknown, Value
from .file import File


def has_own_module(file: File, node: ast.expr) -> bool:
    """Whether an attribute holds a library's average of a model, which keeps its copy in a ``.module`` of its own.

    Nobody shards such an object: what it copies is made plain for it (FS505). All that the repository stores under the
    attribute's name, in whatever object, has to be known, since the analysis may not see every object.
    """
    stored = _stored(file, node.attr) if isinstance(node, ast.Attribute) else None
    if stored is None:
        return False
    known = [v for v in file.values(node) if not isinstance(v, Unknown)]
    values = [v for v in (*stored, *known) if not (isinstance(v, Constant) and v.value is None)]
    names = {v.name if isinstance(v, Opaque) else "" for v in values} - NAMESPACES
    return bool(names) and all(any(fnmatchcase(name, pattern) for pattern in AVERAGES) for name in names)


def _stored(file: File, name: str) -> list[Value] | None:
    """What code stores in attributes of a name; None where nobody knows some of it."""
    found: list[Value] = []
    for index in file.program.relevant_files():
        if not re.search(rf"\b{name}\b", file.program.text(file.program.facts[index].path)):
            continue
        other = file.program.file(index)
        for node in other.nodes(ast.Attribute):
            if node.attr != name or isinstance(node.ctx, ast.Load):
                continue
            assign = other.parents[node]
            is_plain = isinstance(assign, ast.Assign | ast.AnnAssign)
            values = other.values(assign.value) if is_plain and assign.value is not None else []
            if not values or any(isinstance(v, Unknown) for v in values):
                return None
            found += values
    return found
