"""Whether parameters of a wrapped model may be float16, which ShardedGradScaler takes and torch.amp.GradScaler refuses."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from ..analysis.values import Instance, Opaque
from ..groups import Wrap
from ..migration import Migration
from ..view import FileView

_TYPES = ("torch.float16", "torch.half", "torch.HalfTensor", "torch.cuda.HalfTensor")
_NAMES = ("float16", "fp16", "half")
_ONLY_CASTS = ("MixedPrecision", "MixedPrecisionPolicy", "autocast")
"""Calls that are given a type to compute in, and leave the parameters as they are."""


def may_be_half(migration: Migration) -> bool:
    """Whether nothing rules float16 parameters out: every model is built here, and no float16 but that of a cast."""

    def find() -> bool:
        wraps = [wrap for group in migration.groups.all for wrap in group.wraps if wrap.value.kind == "FSDP1"]
        if not wraps or not all(map(_is_built_here, wraps)):
            return True
        return any(True for word in _NAMES for view in migration.program.views_with(word) for _ in _mentions(view))

    return migration.once("half precision", None, find)


def _is_built_here(wrap: Wrap) -> bool:
    """Whether a wrapped model is surely of a class of the repository, or put together from layers of torch."""
    named = [keyword.value for keyword in wrap.node.keywords if keyword.arg == "module"]
    models = [*wrap.node.args[:1], *named][:1]
    values = [value for model in models for value in wrap.view.values(model)]
    return bool(values) and all(
        isinstance(value, Instance) or (isinstance(value, Opaque) and value.name.startswith("torch.nn.")) for value in values
    )


def _mentions(view: FileView) -> Iterator[ast.AST]:
    """Where parameters may be made float16: ``model.half()``, or the type outside the call of a cast."""
    for node in view.nodes(ast.Attribute, ast.Name, ast.Constant):
        if isinstance(node, ast.Constant):
            found = node.value in _NAMES
        elif view.external(node) in _TYPES:
            found = True
        else:
            found = _is_method(view, node)
        if found and not any(_only_casts(ancestor) for ancestor in view.ancestors(node)):
            yield node


def _is_method(view: FileView, node: ast.AST) -> bool:
    """Whether this is the ``model.half`` of a call."""
    call = view.parents.get(node)
    return isinstance(node, ast.Attribute) and node.attr == "half" and isinstance(call, ast.Call) and call.func is node


def _only_casts(node: ast.AST) -> bool:
    if not isinstance(node, ast.Call):
        return False
    function = node.func
    name = function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")
    return name in _ONLY_CASTS
