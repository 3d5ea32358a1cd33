"""Classes derived from DDP whose methods work on its reducer, as copies of its own forward do: they stay what they are."""

from __future__ import annotations

import ast

from ..flow.values import ClassValue
from .file import File

_MACHINERY = frozenset({"reducer", "_sync_buffers", "_sync_params", "_check_sync_bufs_pre_fwd", "_check_sync_bufs_post_fwd"})


def reduces_itself(file: File, cls: ast.AST | None) -> bool:
    """Whether a class reads DDP's machinery off its own objects, and has none of that name itself."""
    if not isinstance(cls, ast.ClassDef):
        return False
    own = [n for n in ast.walk(cls) if isinstance(n, ast.Attribute) and isinstance(n.value, ast.Name) and n.value.id == "self"]
    stored = {n.attr for n in own if isinstance(n.ctx, ast.Store)} | {m.name for m in cls.body if isinstance(m, ast.FunctionDef)}
    return any(n.attr in _MACHINERY and n.attr not in stored for n in own if isinstance(n.ctx, ast.Load))


def is_made_of_such(file: File, call: ast.Call) -> bool:
    """Whether a call makes an object of such a class."""
    for value in file.called_values(call):
        if isinstance(value, ClassValue):
            owner = file.program.file(value.file)
            name = file.program.facts[value.file].classes[value.index].name
            if any(cls.name == name and reduces_itself(owner, cls) for cls in owner.nodes(ast.ClassDef)):
                return True
    return False
