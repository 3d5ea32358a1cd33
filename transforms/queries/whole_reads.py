"""Reads of parameters and gradients that are right once the tensor is whole: nothing is written, and no graph runs through."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from .file import File
from .parameter_math import tensors_by_name

_NORMS = frozenset({"torch.norm", "torch.linalg.norm", "torch.linalg.vector_norm"})
_READS = frozenset(
    {"abs", "pow", "square", "sqrt", "mean", "max", "min", "std", "var", "median", "item", "tolist", "numpy", "cpu", "all", "any",
     "isnan", "isinf", "isfinite", "count_nonzero", "sign", "argmax", "quantile", "histc", "to", "clone", "float", "double"}
)  # fmt: skip
"""Methods that read a tensor, and give another one or a number."""
_SAME = frozenset({"detach", "data"})
_FUNCTIONS = ("torch.", "numpy.", "math.", "builtins.float", "wandb.Histogram")
_OF_OTHERS = ("torch.distributed.", "torch.optim.", "torch.nn.", "torch.utils.", "torch.save", "torch.Tensor")


def whole_read(file: File, node: ast.expr) -> ast.expr | None:
    """What has to be gathered where code reads a tensor: the tensor, or a norm of it, for which shards need not move.

    None where more is done with it, and for parameters themselves: a graph may run through what is computed from them.
    """
    tensor, has_graph = node, not (isinstance(node, ast.Attribute) and node.attr == "grad")
    while isinstance(read := file.parents[tensor], ast.Attribute) and read.attr in _SAME and isinstance(read.ctx, ast.Load):
        outer = file.parents[read]
        tensor = outer if read.attr == "detach" and isinstance(outer, ast.Call) and outer.func is read else read
        has_graph = False
    if has_graph or not _only_reads(file, tensor):
        return None
    if isinstance(read, ast.Attribute):
        call = file.parents[read]
        if not (isinstance(call, ast.Call) and call.func is read):
            return None
        return call if read.attr == "norm" else tensor if read.attr in _READS else None
    if isinstance(read, ast.Call) and tensor in read.args:
        name = file.external(read.func) or ""
        if name in _NORMS:
            return read
        is_pure = name.startswith(_FUNCTIONS) and not name.startswith(_OF_OTHERS) and not name.endswith("_")
        return tensor if is_pure else None
    return tensor if isinstance(read, (ast.BinOp, ast.Compare, ast.FormattedValue)) else None


def whole_reads(file: File) -> Iterator[tuple[ast.expr, ast.expr]]:
    """Each tensor of a file that is read so, with what has to be gathered."""
    for node in tensors_by_name(file):
        if (gathered := whole_read(file, node)) is not None:
            yield node, gathered


def _only_reads(file: File, tensor: ast.expr) -> bool:
    """Whether the statement around writes no tensor, or only adds to a name."""
    statement = file.statement(tensor)
    if isinstance(statement, ast.AugAssign):
        return isinstance(statement.target, ast.Name)
    if isinstance(statement, ast.Assign):
        targets = [n for target in statement.targets for n in ast.walk(target)]
        return not any(isinstance(n, ast.Subscript) or getattr(n, "attr", "") in ("data", "grad") for n in targets)
    around = [a for a in file.ancestors(tensor) if isinstance(a, ast.Call) and isinstance(a.func, ast.Attribute)]
    return not any(a.func.attr.endswith("_") and not a.func.attr.endswith("__") for a in around)  # type: ignore[union-attr]
