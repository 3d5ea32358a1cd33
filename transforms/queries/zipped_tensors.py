"""Loops that write one model's tensors from those of another one: which of them are written."""

from __future__ import annotations

import ast

from .file import File
from .model_classes import may_get_models
from .sharding import ShardingQueries

_PARAMETERS = frozenset({"parameters", "named_parameters"})
_BUFFERS = frozenset({"buffers", "named_buffers"})


def written_tensor(node: ast.expr) -> ast.expr | None:
    """``average[name]`` of ``average[name].detach().mul_(d)``: what is cheap to name once more."""
    while isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        node = node.func.value
    inner = [n for n in ast.walk(node) if not isinstance(n, (ast.expr_context, ast.Slice))]
    plain = all(isinstance(n, (ast.Name, ast.Attribute, ast.Subscript, ast.Constant)) for n in inner)
    return node if plain else None


def zipped_target(sharding: ShardingQueries, file: File, call: ast.Call) -> int | None:
    """Which of ``zip(a.parameters(), b.parameters())`` a loop writes, where either model may be sharded."""
    read = [a.func for a in call.args if isinstance(a, ast.Call) and isinstance(a.func, ast.Attribute)]
    if any(method.attr not in _PARAMETERS | _BUFFERS for method in read):
        return None
    if len(read) != len(call.args) or len(read) < 2 or all(method.attr in _BUFFERS for method in read):
        return None  # buffers are never sharded
    receivers = [method.value for method in read]
    if not any(sharding.of(file, receiver).wrappers or may_get_models(file, receiver) for receiver in receivers):
        return None
    return _written(file, call)


def _written(file: File, call: ast.Call) -> int | None:
    """Which of the zipped tensors the loop writes in place; None if it is none, or several."""
    loop = file.parents[call]
    if isinstance(loop, ast.comprehension) or not isinstance(loop, ast.For):
        return None
    targets = loop.target.elts if isinstance(loop.target, ast.Tuple) else []
    names = [{n.id for n in ast.walk(t) if isinstance(n, ast.Name)} for t in targets]
    written = {place for place, own in enumerate(names) for name in own if _is_written(loop, name)}
    return written.pop() if len(written) == 1 else None


def _is_written(loop: ast.For, name: str) -> bool:
    for node in ast.walk(loop):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr.endswith("_"):
            if not node.func.attr.startswith("_") and node.func.attr != "requires_grad_" and _base(node.func.value) == name:
                return True
        if isinstance(node, (ast.Assign, ast.AugAssign)):
            for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
                if isinstance(target, (ast.Attribute, ast.Subscript)) and _base(target) == name and _is_data(target):
                    return True
                if isinstance(node, ast.AugAssign) and isinstance(target, ast.Name) and target.id == name:
                    return True
    return False


def _is_data(target: ast.expr) -> bool:
    return not isinstance(target, ast.Attribute) or target.attr == "data"


def _base(node: ast.expr) -> str | None:
    while isinstance(node, (ast.Attribute, ast.Subscript, ast.Call)):
        node = node.func if isinstance(node, ast.Call) else node.value
    return node.id if isinstance(node, ast.Name) else None
