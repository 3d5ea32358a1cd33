"""State dicts that are kept while the model goes on: those of a plain model follow its weights, gathered ones do not."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from .file import File

_DEEPEST = 3
_LOOPS = (ast.For, ast.AsyncFor, ast.While)
_HARMLESS = re.compile(r"no_grad|inference_mode|set_grad_enabled|autocast|state_dict_type|nullcontext")
"""Contexts that leave the weights as they are."""


def is_read_later(file: File, call: ast.Call, depth: int = 0) -> bool:
    """Whether what ``state_dict()`` gives is assigned as it is, and read where the weights may have become others.

    So it is behind the loop that it is assigned in (the best weights of all epochs), behind a context that changed the
    weights for a while (an average), or in another method, out of an attribute. What a function returns is asked about
    where it is called.
    """
    function = file.function(call)
    if isinstance(file.parents[_outermost(file, call)], ast.Return) and function is not None and depth < _DEEPEST:
        return any(is_read_later(caller, other, depth + 1) for caller, other in file.program.callers(file, function))
    target = _target(file, call)
    if isinstance(target, ast.Attribute):
        return any(file.function(read) is not function for read in _reads(file, target))
    if not isinstance(target, ast.Name):
        return False
    around = next((a for a in _blocks(file, call) if isinstance(a, _LOOPS) or _changes_weights(a)), None)
    end = getattr(around, "end_lineno", None)
    return end is not None and any(read.lineno > end and file.function(read) is function for read in _reads(file, target))


def _target(file: File, call: ast.Call) -> ast.expr | None:
    """What a call, or a dictionary with it as a value, is assigned to."""
    assign = file.parents[_outermost(file, call)]
    return assign.targets[0] if isinstance(assign, ast.Assign) and len(assign.targets) == 1 else None


def _outermost(file: File, call: ast.Call) -> ast.AST:
    """A call, or the dictionary or choice that it is a value of."""
    node: ast.AST = call
    while isinstance(file.parents[node], (ast.Dict, ast.IfExp)):
        node = file.parents[node]
    return node


def _reads(file: File, target: ast.Name | ast.Attribute) -> Iterator[ast.expr]:
    """The places that read a variable, but for tests of whether it is there."""
    name = target.id if isinstance(target, ast.Name) else target.attr
    for node in file.nodes(type(target)):
        same = (node.id if isinstance(node, ast.Name) else getattr(node, "attr", "")) == name
        if same and isinstance(getattr(node, "ctx", None), ast.Load) and not isinstance(file.parents[node], ast.Compare):
            yield node  # type: ignore[misc]


def _blocks(file: File, node: ast.AST) -> Iterator[ast.AST]:
    for around in file.ancestors(node):
        if isinstance(around, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
            return
        yield around


def _changes_weights(block: ast.AST) -> bool:
    return isinstance(block, ast.With) and not all(_HARMLESS.search(ast.unparse(item.context_expr)) for item in block.items)
