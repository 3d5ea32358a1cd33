"""Optimizers whose steps look at more than single elements of a parameter, which is all that a shard can be asked for."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from ..flow.library import is_optimizer
from ..flow.values import ClassValue, Opaque, Optimizer
from .file import File
from .optimizer_objects import optimizers_around
from .sharding import Sharding, ShardingQueries

_BY_ELEMENT = frozenset({"SGD", "Adam", "AdamW", "Adamax", "Adagrad", "Adadelta", "RMSprop", "RAdam", "NAdam", "ASGD", "Rprop",
                         "SparseAdam", "Lion", "AdaBelief", "Optimizer", "ZeroRedundancyOptimizer", "SGDScheduleFree",
                         "AdamWScheduleFree", "RAdamScheduleFree", "ScheduleFreeWrapper"})  # fmt: skip
"""Classes of optimizers that compute element by element, and are written in Python; some of them outside of steps too."""
_WITH_KERNELS = ("apex.", "bitsandbytes.", "deepspeed.")
_SHAPED = frozenset({"view", "view_as", "reshape", "reshape_as", "flatten", "ravel", "matmul", "mm", "bmm", "addmm", "svd", "qr",
                     "eigh", "inverse", "t", "transpose", "permute", "cat", "stack", "chunk", "unsqueeze", "squeeze", "expand",
                     "new", "new_zeros", "new_ones", "new_full", "new_empty", "new_tensor", "einsum", "matrix_power",
                     "all_reduce", "all_gather", "all_gather_into_tensor", "broadcast", "reduce_scatter"})  # fmt: skip
_REDUCE = frozenset({"norm", "vector_norm", "sum", "mean", "std", "var", "amax", "amin", "median", "dot", "cosine_similarity"})
_MADE = frozenset({"zeros", "ones", "empty", "full", "rand", "randn"})
_READ = frozenset({"item", "tolist", "numpy"})


def optimizers_made(file: File, sharding: ShardingQueries) -> Iterator[tuple[ast.Call, Sharding]]:
    """Calls that make an optimizer of a library, or something around one, which does more than what shards allow."""
    for call in file.nodes(ast.Call):
        number = file.call_site(call)
        values = [v for v in file.values(call) if isinstance(v, Optimizer | Opaque) and v.site == number >= 0]
        parent = file.parents[call]
        is_whole = isinstance(parent, ast.Call) and _name(parent.func) == "step_on_whole"
        if is_whole or any(isinstance(v, ClassValue) for v in file.called_values(call)):
            continue
        for value in (v for v in values if _looks_at_wholes(v.name)):
            inner = [value] if isinstance(value, Optimizer) else optimizers_around(file.program, value)
            found = [answer for answer in map(sharding.of_parameters, inner) if answer.wrappers]
            if found:
                yield call, found[0]


def _looks_at_wholes(name: str) -> bool:
    last = name.rpartition(".")[2]
    return last[:1].isupper() and (last not in _BY_ELEMENT or name.startswith(_WITH_KERNELS))


def steps_on_wholes(file: File, sharding: ShardingQueries) -> Iterator[ast.FunctionDef]:
    """The ``step`` of each optimizer class of the file that does so."""
    for cls in file.nodes(ast.ClassDef):
        classes = [v for v in file.values(cls) if isinstance(v, ClassValue)]
        bases = [base for one in classes for base in sharding.program.flow.external_bases(one)]
        step = next((f for f in cls.body if isinstance(f, ast.FunctionDef) and f.name == "step"), None)
        if step is None or "on_whole_parameters" in map(_name, step.decorator_list):
            continue
        if any(map(is_optimizer, bases)) and any(_is_of_whole(file, n) for n in _code(file, cls)):
            yield step


def _code(file: File, cls: ast.ClassDef) -> Iterator[ast.AST]:
    """What stands in a class, and in the functions of its file that it calls."""
    named = {f.name: f for f in file.nodes(ast.FunctionDef) if file.parents[f] is file.tree}
    pending: list[ast.AST] = [f for f in cls.body if not (isinstance(f, ast.FunctionDef) and f.name == "__init__")]
    seen: set[ast.AST] = set()
    while pending:
        part = pending.pop()
        if part in seen:
            continue
        seen.add(part)
        for node in ast.walk(part):
            yield node
            if isinstance(node, ast.Name) and node.id in named:
                pending.append(named[node.id])


def _is_of_whole(file: File, node: ast.AST) -> bool:
    """Whether an expression computes over the elements of a tensor, or with its shape, other than to read a number at once."""
    if isinstance(node, ast.BinOp):
        return isinstance(node.op, ast.MatMult)
    if not isinstance(node, ast.Call):
        return isinstance(node, ast.Attribute) and node.attr in ("T", "mT")
    name = _name(node.func)
    if name in _SHAPED:
        return isinstance(node.func, ast.Attribute)
    if name in _MADE:
        return any(isinstance(n, ast.Attribute) and n.attr in ("shape", "size") for a in node.args for n in ast.walk(a))
    if name not in _REDUCE or not isinstance(node.func, ast.Attribute):
        return False
    outer = file.parents[node]
    is_read = isinstance(outer, ast.Attribute) and outer.attr in _READ
    return not is_read and not (isinstance(outer, ast.Call) and getattr(outer.func, "id", "") == "float")


def _name(function: ast.expr) -> str:
    return function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")
