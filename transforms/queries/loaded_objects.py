"""What is read out of a file: a model that was pickled whole is plain, whoever it belonged to."""

from __future__ import annotations

import ast

from ..flow.values import Opaque
from .file import File

_LOADS = frozenset({"torch.load", "torch.serialization.load", "pickle.load", "joblib.load"})


def comes_from_file(file: File, node: ast.AST) -> bool:
    """Whether an expression is what a file held, or an entry or attribute of it: ``ckpt["ema"].float()``."""
    while not (values := file.values(node)):
        if isinstance(node, ast.Call):
            node = node.func
        if not isinstance(node, (ast.Attribute, ast.Subscript)):
            return False
        node = node.value
    return all(isinstance(v, Opaque) and v.name in _LOADS for v in values)
