"""What `torch.autograd.grad` is asked to differentiate by: parameters of a model, or tensors that are no parameters."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from ..flow.library import RETURN_SELF, TENSOR_MATH
from .arguments import given_for_parameter
from .assignments import assigned_values
from .file import File
from .parameter_reads import OF_LAYERS

_TENSORS = re.compile(r"(?i)param|\bgrad|weight|theta|layer")
_OF_TENSORS = TENSOR_MATH | RETURN_SELF | frozenset({"requires_grad_", "detach", "clone", "new_zeros", "new_ones", "new_tensor"})
_DEEPEST = 4


def inputs_of_gradients(file: File) -> Iterator[ast.expr]:
    """The inputs of each call, where they may be parameters: by their name, or by where they come from."""
    for call in file.nodes(ast.Call):
        if file.external(call.func) == "torch.autograd.grad":
            given = [*call.args[1:2], *(keyword.value for keyword in call.keywords if keyword.arg == "inputs")]
            yield from (inputs for inputs in given if any(_may_be_parameter(*part) for part in _sources(file, inputs)))


def _sources(file: File, node: ast.expr, depth: int = 0) -> Iterator[tuple[File, ast.expr]]:
    """An expression and those that it comes from: what names were assigned, what callers hand in."""
    yield file, node
    parts = node.elts if isinstance(node, (ast.List, ast.Tuple)) else [node]
    for name in (part for part in parts if isinstance(part, (ast.Name, ast.Attribute))) if depth < _DEEPEST else ():
        for owner, value in [*((file, value) for value in assigned_values(file, name)), *given_for_parameter(file, name)]:
            yield from _sources(owner, value, depth + 1)


def _may_be_parameter(file: File, node: ast.expr) -> bool:
    """Whether this is called like a parameter, is a layer's, or is what a method gives that takes nothing: `get_last_layer()`."""
    if _TENSORS.search(ast.unparse(node)) or (isinstance(node, ast.Attribute) and OF_LAYERS.fullmatch(node.attr)):
        return True
    method = node.func if isinstance(node, ast.Call) and not node.args and not node.keywords else None
    return isinstance(method, ast.Attribute) and method.attr not in _OF_TENSORS and file.external(method) is None
