"""Objects of the repository's own classes derived from wrappers."""

from __future__ import annotations

import ast

from ..flow.values import Instance
from .file import File


def holds_module(file: File, node: ast.AST) -> bool:
    """Whether an expression may be of a class of the program derived from a wrapper, which keeps the module inside."""
    flow = file.program.flow
    return any(isinstance(v, Instance) and flow.wrapper_kind(v.cls) is not None for v in file.values(node))
