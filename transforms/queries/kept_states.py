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


def keeps_tensors(file: File, call: ast.Call) -> bool:
    """Whether the tensors of a state dict are kept in a list, to be read again and again: an average is computed from them.

    ``list(model.state_dict().values())`` in an attribute, returned, or in front of a loop that reads it.
    """
    values = file.parents[call]
    if not isinstance(values, ast.Attribute) or values.attr != "values":
        return False
    node = file.parents[values]
    while isinstance(around := file.parents[node], (ast.Tuple, ast.List)) or _is_collection(around):
        node = around
    if isinstance(around, ast.Return):
        return True
    target = around.targets[0] if isinstance(around, ast.Assign) and len(around.targets) == 1 else None
    if isinstance(target, ast.Tuple) and isinstance(node, ast.Tuple):
        return True  # weights of several models
    if isinstance(target, ast.Attribute):
        return True
    return isinstance(target, ast.Name) and any(_is_read_again(file, around, read) for read in _reads(file, target))


def _is_collection(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("list", "tuple")


def _is_read_again(file: File, assignment: ast.AST, read: ast.expr) -> bool:
    """Whether a read is in a loop that an assignment stands in front of, or hands the value on to who called the function."""
    if file.function(read) is not file.function(assignment):
        return False
    above = set(file.ancestors(assignment))
    loops = (a for a in _blocks(file, read) if isinstance(a, _LOOPS) and a not in above)
    return any(isinstance(a, ast.Return) for a in _blocks(file, read)) or any(loops)


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
