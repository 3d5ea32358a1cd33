"""Whether the steps of an optimizer compute with each element of a parameter by itself, which is all that a shard allows."""

from __future__ import annotations

import ast
import builtins
from collections.abc import Iterator

from ..flow.values import ClassValue
from .file import File
from .program import Program

_TENSORS = frozenset(
    {"abs", "acos", "add", "addcdiv", "addcmul", "asin", "atan", "atan2", "bfloat16", "bool", "ceil", "clamp", "clamp_max",
     "clamp_min", "clip", "clone", "contiguous", "copy", "cos", "cpu", "cuda", "detach", "device", "div", "divide", "double",
     "empty_like", "eq", "erf", "erfinv", "exp", "expm1", "fill", "float", "floor", "fmod", "frac", "full_like", "ge", "gt",
     "half", "int", "is_complex", "is_floating_point", "is_tensor", "isfinite", "isinf", "isnan", "le", "lerp", "log", "log10",
     "log1p", "log2", "logical_and", "logical_not", "logical_or", "long", "lt", "masked_fill", "maximum", "minimum", "mul",
     "multiply", "nan_to_num", "ne", "neg", "negative", "ones_like", "pow", "rand_like", "randn_like", "reciprocal", "relu",
     "remainder", "requires_grad", "round", "rsqrt", "sgn", "sigmoid", "sign", "sin", "softplus", "sqrt", "square", "sub",
     "subtract", "tan", "tanh", "to", "true_divide", "trunc", "type", "type_as", "view_as_complex", "view_as_real", "where",
     "xlogy", "zero", "zeros_like"}
)  # fmt: skip
"""Functions and methods of tensors that give each element its own result; with `_` behind it in place too."""
_SHAPE_READ = frozenset({"size", "numel", "dim", "nelement", "ndimension", "stride", "data_ptr", "is_contiguous", "item",
                         "tolist", "element_size", "get_device", "is_cuda", "is_sparse"})  # fmt: skip
_PLAIN = frozenset(
    {"append", "clear", "copy", "extend", "format", "get", "index", "insert", "items", "join", "keys", "lower", "pop",
     "setdefault", "startswith", "endswith", "update", "upper", "values", "difference", "intersection", "union", "discard",
     "remove", "split", "debug", "info", "warning", "error", "warn", "add_scalar", "zero_grad", "add_param_group", "step",
     "overloads", "coalesce"}
)  # fmt: skip
"""Methods of containers, texts, logs, functions, and of other optimizers, which are looked at where they are made."""
_WITHOUT_TENSORS = ("builtins.", "math.", "warnings.", "logging.", "collections.", "itertools.", "functools.", "copy.", "time.",
                    "typing.", "operator.", "torch.optim.", "torch.cuda.", "torch.compiler.", "torch._utils.",
                    "torch.utils._foreach_utils.")  # fmt: skip
_PLAIN_FUNCTIONS = frozenset({"torch.no_grad", "torch.enable_grad", "torch.set_grad_enabled", "torch.is_grad_enabled",
                              "torch.finfo", "torch.get_default_dtype", "torch.tensor", "torch.jit.is_scripting",
                              "torch.jit.script", "torch.nn.utils.clip_grad_norm_",
                              "torch.nn.utils.clip_grad_value_"})  # fmt: skip
_READ_AT_ONCE = frozenset({"norm", "vector_norm", "sum", "mean", "std", "var", "amax", "amin", "max", "min", "median", "any",
                           "all"})  # fmt: skip
"""Reductions: read as a number where they stand, they are mended there."""
_MADE = frozenset({"zeros", "ones", "empty", "full", "rand", "randn"})


def is_elementwise(program: Program, file: File, step: ast.FunctionDef) -> bool:
    """Whether nothing that a step does, or calls, may look at more than single elements. What nobody knows may."""
    return not any(_may_be_of_whole(program, where, node) for where, node in _code(program, file, step))


def _code(program: Program, file: File, step: ast.FunctionDef) -> Iterator[tuple[File, ast.AST]]:
    pending: list[tuple[File, ast.AST]] = [(file, step)]
    seen: set[ast.AST] = set()
    while pending:
        where, function = pending.pop()
        if function in seen:
            continue
        seen.add(function)
        skipped = {n for raised in ast.walk(function) if isinstance(raised, ast.Raise) for n in ast.walk(raised)}
        skipped |= {n for decorator in getattr(function, "decorator_list", ()) for n in ast.walk(decorator)}
        for node in ast.walk(function):
            if node in skipped:
                continue
            yield where, node
            if isinstance(node, ast.Call):
                if _last_name(node.func) != "step":  # that of another optimizer, which is looked at where it is made
                    pending += [program.function_node(callee) for callee in program.callees(where, node)]
                own = _own_method(where, node)
                pending += [(where, own)] if own is not None else []


def _own_method(file: File, call: ast.Call) -> ast.FunctionDef | None:
    """The method of the class around it that a call names: of a class that nothing seen makes objects of."""
    owner = file.enclosing_class(call)
    if owner is None or not isinstance(call.func, ast.Attribute) or not isinstance(call.func.value, ast.Name):
        return None
    return next((f for f in owner.body if isinstance(f, ast.FunctionDef) and f.name == call.func.attr), None)


def _may_be_of_whole(program: Program, file: File, node: ast.AST) -> bool:
    if isinstance(node, ast.BinOp):
        return isinstance(node.op, ast.MatMult)
    if isinstance(node, ast.Attribute):
        return node.attr in ("T", "mT", "H", "mH")
    if isinstance(node, ast.Subscript):
        is_part = isinstance(node.value, ast.Attribute) and node.value.attr in ("data", "grad")
        return is_part or any(isinstance(n, ast.Slice) for n in ast.walk(node.slice))
    return isinstance(node, ast.Call) and _call_may_be_of_whole(program, file, node)


def _call_may_be_of_whole(program: Program, file: File, call: ast.Call) -> bool:
    function, name, last = call.func, file.external(call.func), _last_name(call.func)
    if name is not None and (name.startswith(_WITHOUT_TENSORS) or name in _PLAIN_FUNCTIONS):
        return False
    if last in _MADE and name is not None:
        return any(isinstance(n, ast.Attribute) and n.attr in ("shape", "size") for a in call.args for n in ast.walk(a))
    is_own = any(isinstance(v, ClassValue) for v in file.called_values(call)) or _own_method(file, call) is not None
    if name is None and (is_own or program.callees(file, call)):
        return False  # looked at where it stands
    if not isinstance(function, ast.Attribute):
        return last not in ("closure", "super") and (name is not None or not hasattr(builtins, last))
    if last in ("max", "min") and len(call.args) > 1 and not isinstance(call.args[1], ast.Constant | ast.UnaryOp):
        return False  # the greater one of two elements
    if last in _READ_AT_ONCE:
        return not _is_read_at_once(file, call)
    is_known = last.removesuffix("_").removeprefix("_foreach_") in _TENSORS or last in _SHAPE_READ or last in _PLAIN
    return not is_known and not _is_inherited(function)


def _last_name(function: ast.expr) -> str:
    return function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")


def _is_inherited(function: ast.Attribute) -> bool:
    """Whether it is a method that an optimizer has from torch's: those look at no tensor's elements."""
    owner = function.value.func if isinstance(function.value, ast.Call) else function.value
    return isinstance(owner, ast.Name) and owner.id in ("self", "super")


def _is_read_at_once(file: File, call: ast.Call) -> bool:
    """Whether a number is all that is left of a tensor: ``p.norm().item()``, ``float(p.sum())``."""
    outer = file.parents[call]
    is_read = isinstance(outer, ast.Attribute) and outer.attr in ("item", "tolist", "numpy")
    return is_read or (isinstance(outer, ast.Call) and getattr(outer.func, "id", "") in ("float", "bool", "int"))
