"""Tensors that loops read from what an object keeps: where a model is held whole, they are its shards all the same."""

from __future__ import annotations

import ast

from .file import File

_READS_MODEL = frozenset({"buffers", "children", "modules", "named_buffers", "named_children", "named_modules",
                          "named_parameters", "parameters", "state_dict"})  # fmt: skip
"""What gives that which is registered at the moment."""


def is_of_kept(file: File, node: ast.AST) -> bool:
    """Whether a tensor comes out of a loop over attributes, which does not ask a model for what it has now."""
    names = {n.id for n in ast.walk(node) if isinstance(n, ast.Name)}
    for around in file.ancestors(node):
        if isinstance(around, (ast.ListComp, ast.SetComp, ast.GeneratorExp, ast.DictComp)):
            loops = list(around.generators)
        else:
            loops = [around] if isinstance(around, ast.For) else []
        for loop in loops:
            bound = {n.id for n in ast.walk(loop.target) if isinstance(n, ast.Name)}
            if names & bound:
                return _is_attribute(loop.iter) and not _asks_model(loop.iter)
    return False


def _is_attribute(over: ast.expr) -> bool:
    return any(isinstance(n, ast.Attribute) and isinstance(n.ctx, ast.Load) for n in ast.walk(over))


def _asks_model(over: ast.expr) -> bool:
    called = [n.func for n in ast.walk(over) if isinstance(n, ast.Call)]
    return any((f.attr if isinstance(f, ast.Attribute) else getattr(f, "id", "")) in _READS_MODEL for f in called)
