"""Functions that a module's own methods hand the module to: what they do with it, the methods might do themselves."""

from __future__ import annotations

import ast

from .arguments import handed_in
from .before_wraps import BeforeWraps
from .file import File

_DEEPEST = 3


def is_self(before: BeforeWraps | None, file: File, node: ast.expr, depth: int = 0) -> bool:
    """Whether a name is ``self``, or a parameter for which every caller of the function hands in its own ``self``."""
    if not isinstance(node, ast.Name):
        return False
    if node.id in ("self", "cls"):
        return True
    function = file.function(node)
    if before is None or depth > _DEEPEST or not isinstance(function, ast.FunctionDef):
        return False
    if any(file.function(binding) is function for binding in file.bindings.get(node.id, ())):
        return False
    callers = before.callers(file, node) or []
    given = [handed_in(file, node, node.id, call) if isinstance(call, ast.Call) else None for _, call in callers]
    return bool(given) and all(
        value is not None and is_self(before, caller, value, depth + 1) for (caller, _), value in zip(callers, given, strict=True)
    )
