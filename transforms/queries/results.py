"""Whether anybody uses what a call gives back."""

from __future__ import annotations

import ast

from .before_wraps import BeforeWraps
from .file import File

_DEEPEST = 3


def is_result_used(file: File, call: ast.Call, before: BeforeWraps | None, depth: int = 0) -> bool:
    """Whether the result of a call may be read: not where it is dropped, or gets a name that is only returned to be dropped.

    ``before`` knows who calls the function around; without it whatever is returned counts as used.
    """
    parent = file.parents[call]
    if isinstance(parent, ast.Expr):
        return False
    function = file.function(call)
    returned = isinstance(parent, ast.Return)
    if isinstance(parent, ast.Assign) and len(parent.targets) == 1 and isinstance(parent.targets[0], ast.Name):
        name = parent.targets[0].id
        if any(name in node.names for node in file.nodes(ast.Global, ast.Nonlocal)) or function is None:
            return True
        reads = [n for n in ast.walk(function) if isinstance(n, ast.Name) and n.id == name and isinstance(n.ctx, ast.Load)]
        returned = bool(reads)
        if not all(isinstance(file.parents[read], ast.Return) and file.function(read) is function for read in reads):
            return True
    elif not returned:
        return True
    if not returned:
        return False
    callers = before.callers(file, call) if before is not None and depth < _DEEPEST else None
    return not callers or any(
        not isinstance(place, ast.Call) or is_result_used(other, place, before, depth + 1) for other, place in callers
    )
