"""Parameters that code keeps while a model is still plain: in lists, groups and objects, which go on with the old ones."""

from __future__ import annotations

import ast
from collections.abc import Container, Iterator, Sequence

from ..flow.values import Derived
from .file import File
from .program import Program

_READERS = frozenset({"parameters", "named_parameters"})
_OF_LAYERS = frozenset({"weight", "bias"})
_PASS_ON = frozenset(
    {"list", "tuple", "filter", "enumerate", "sorted", "reversed", "iter", "dict", "set", "zip", "chain", "map", "next"}
)  # fmt: skip
_CONSUMERS = frozenset(
    {"sum", "any", "all", "len", "print", "max", "min", "isinstance", "id", "str", "repr", "type", "hasattr"}
)  # fmt: skip
_NUMBERS = frozenset(
    {"numel", "nelement", "size", "shape", "ndim", "dim", "dtype", "device", "is_cuda", "requires_grad", "requires_grad_",
     "clone", "item", "norm", "sum", "mean", "abs", "std", "var", "min", "max", "is_leaf", "element_size", "nbytes", "tolist",
     "numpy"}
)  # fmt: skip
"""What is read off a parameter and shares no memory with it."""
_DEEPEST = 4


def keeps_parameters(program: Program, paths: Sequence[str], modules: Container[object], file: File, wrap: ast.Call) -> bool:
    """Whether something may still hold parameters of modules when a call wraps them: what is not used up where it is read."""
    for path in paths:
        other = program.file(path)
        for read in _reads(other, modules):
            if not _comes_later(other, read, file, wrap, 0) and not _is_used_up(other, read):
                return True
    return False


def _reads(file: File, modules: Container[object]) -> Iterator[ast.expr]:
    """``model.parameters()``, and ``part.weight`` outside of the modules' own methods."""
    for call in file.nodes(ast.Call):
        if isinstance(call.func, ast.Attribute) and call.func.attr in _READERS:
            if any(value in modules for value in file.values(call.func.value)):
                yield call
    for node in file.nodes(ast.Attribute):
        if node.attr in _OF_LAYERS and isinstance(node.ctx, ast.Load) and not ast.unparse(node).startswith("self."):
            if any(isinstance(v, Derived) and v.kind == "parameters" and v.owner in modules for v in file.values(node)):
                yield node


def _comes_later(file: File, node: ast.AST, other: File, wrap: ast.Call, depth: int) -> bool:
    """Whether a place is surely reached behind the wrap alone: in its function, or in those that are called there."""
    function = file.function(node)
    if file is other and function is other.function(wrap):
        shared = set(other.ancestors(wrap)) & set(file.ancestors(node))
        in_loop = any(isinstance(around, ast.For | ast.While) for around in shared)
        return not in_loop and node.lineno > (wrap.end_lineno or wrap.lineno)  # type: ignore[attr-defined]
    if depth == _DEEPEST or not isinstance(function, ast.FunctionDef):
        return False
    callers = file.program.callers(file, function)
    return bool(callers) and all(_comes_later(caller, call, other, wrap, depth + 1) for caller, call in callers)


def _is_used_up(file: File, read: ast.AST) -> bool:
    """Whether parameters, one or many, are only looked at, or written in place, where they are read."""
    parent = file.parents[read]
    if isinstance(parent, ast.keyword):
        parent = file.parents[parent]
    if isinstance(parent, ast.Starred | ast.IfExp | ast.BoolOp | ast.UnaryOp):
        return _is_used_up(file, parent)
    if isinstance(parent, ast.For | ast.AsyncFor) and parent.iter is read:
        return _is_only_looked_at(file, parent.target, parent.body)
    if isinstance(parent, ast.comprehension) and parent.iter is read:
        made = file.parents[parent]
        parts = [made.key, made.value] if isinstance(made, ast.DictComp) else [made.elt, *parent.ifs]  # type: ignore[attr-defined]
        return _is_only_looked_at(file, parent.target, parts) or _is_used_up(file, made)
    if isinstance(parent, ast.Attribute):
        return parent.attr in _NUMBERS or isinstance(parent.ctx, ast.Store) or _is_used_up(file, parent)
    if isinstance(parent, ast.Call):
        if parent.func is read:
            return isinstance(file.parents[parent], ast.Expr) or _is_used_up(file, parent)
        name = file.external(parent.func) or ""
        last = name.rpartition(".")[2]
        if last in _PASS_ON:
            return _is_used_up(file, parent)
        return (name.startswith("torch.") and last.islower()) or last in _CONSUMERS
    return isinstance(parent, ast.Expr | ast.Compare | ast.BinOp | ast.If | ast.While | ast.Assert | ast.FormattedValue)


def _is_only_looked_at(file: File, target: ast.AST, parts: Sequence[ast.AST]) -> bool:
    """Whether code uses up each parameter that a loop or comprehension gives it under some names."""
    names = {n.id for n in ast.walk(target) if isinstance(n, ast.Name)}
    named = [n for part in parts for n in ast.walk(part) if isinstance(n, ast.Name) and n.id in names]
    loads = [n for n in named if isinstance(n.ctx, ast.Load)]
    if isinstance(target, ast.Tuple) and len(target.elts) == 2 and isinstance(target.elts[0], ast.Name):
        loads = [n for n in loads if n.id != target.elts[0].id]  # the name beside the parameter
    return all(n not in parts and _is_used_up(file, n) for n in loads)
