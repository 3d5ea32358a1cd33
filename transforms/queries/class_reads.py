"""Where code takes the class of a model for a value: fully_shard gives each unit a class that it makes for it."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from ..flow.values import Constant, Container
from .answers import Sharding
from .file import File
from .sharding import ShardingQueries

_NAMES = frozenset({"__name__", "__qualname__", "__doc__"})
"""What a class made by fully_shard has as the model's own had (see ``helpers/class_names.py``)."""


def classes_read(file: File, sharding: ShardingQueries) -> Iterator[tuple[ast.expr, ast.expr, Sharding]]:
    """``type(model)`` and ``model.__class__`` with the model, where they are called, kept, handed on, or compared with a class.

    What a call of a class that fully_shard made gives has not been initialized (``FSDPModule.__new__`` in torch 2.13).
    """
    for node in file.nodes(ast.Call, ast.Attribute):
        model = _asked_about(file, node)
        parent = file.parents[node]
        if model is None or (isinstance(parent, ast.Attribute) and parent.attr in _NAMES):
            continue
        if isinstance(parent, ast.Call) and getattr(parent.func, "id", "") in ("super", "print", "str"):
            continue
        if isinstance(parent, ast.FormattedValue) or _is_compared_with_wrapper(file, parent):
            continue
        if any(isinstance(v, Container) or (isinstance(v, Constant) and v.value is not None) for v in file.values(model)):
            continue  # of code for values of many kinds, such as a walk through nested ones
        found = sharding.of(file, model)
        if not found.wrappers:
            found = sharding.of_part(file, model)
        if found.wrappers:
            yield node, model, found


def _asked_about(file: File, node: ast.Call | ast.Attribute) -> ast.expr | None:
    if isinstance(node, ast.Attribute):
        return node.value if node.attr == "__class__" and isinstance(node.ctx, ast.Load) else None
    is_type = getattr(node.func, "id", "") == "type" and len(node.args) == 1 and file.external(node.func) == "builtins.type"
    return node.args[0] if is_type else None


def _is_compared_with_wrapper(file: File, parent: ast.AST) -> bool:
    """Whether the class is asked for that of a wrapper, which FS608 answers."""
    asked = (n for n in ast.walk(parent) if isinstance(n, (ast.Name, ast.Attribute))) if isinstance(parent, ast.Compare) else ()
    return any((file.external(n) or "").startswith(("torch.nn.parallel.", "torch.distributed.fsdp.")) for n in asked)
