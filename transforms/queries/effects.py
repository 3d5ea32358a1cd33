"""What a function does with parameters: whether it computes with them, or only asks for names, shapes and counts."""

from __future__ import annotations

import ast

from ..flow.values import FunctionValue
from .file import File
from .program import Program

_ASKING = frozenset(
    {"numel", "nelement", "size", "dim", "parameters", "named_parameters", "modules", "named_modules", "children", "buffers",
     "named_children", "named_buffers", "items", "keys", "values", "append", "extend", "add", "join", "format", "startswith",
     "endswith", "split", "replace", "info", "debug", "warning", "get", "element_size", "is_floating_point", "update",
     "signature", "lower", "upper", "requires_grad_", "train", "eval", "sort", "setdefault", "pop", "copy", "union", "strip"}
)  # fmt: skip
"""Methods that read no numbers out of a parameter, or do nothing with tensors at all."""
_PLAIN_MODULES = ("builtins.", "inspect.", "math.", "logging.", "torch.optim.", "re.", "os.", "json.", "collections.",
                  "itertools.", "functools.", "typing.", "time.", "warnings.", "torch.device", "torch.cuda.")  # fmt: skip
_DEEPEST = 3


def only_asks(program: Program, file: File, call: ast.Call, depth: int = 0) -> bool:
    """Whether all that a method call can run asks for names, shapes and counts, so that no parameter has to be whole."""
    values = file.values(call.func)
    functions = program.callees(file, call) or [v for v in values if isinstance(v, FunctionValue)]
    return bool(functions) and all(_function_only_asks(program, function, depth) for function in functions)


def _function_only_asks(program: Program, value: FunctionValue, depth: int) -> bool:
    file, function = program.function_node(value)
    for node in ast.walk(function):
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.MatMult):
            return False
        if isinstance(node, ast.Call) and not _call_only_asks(program, file, node, depth):
            return False
    return True


def _call_only_asks(program: Program, file: File, call: ast.Call, depth: int) -> bool:
    name = file.external(call.func)
    if name is not None:
        return name.startswith(_PLAIN_MODULES)
    if isinstance(call.func, ast.Attribute) and call.func.attr in _ASKING:
        return True
    if isinstance(call.func, ast.Name) and call.func.id in ("cls", "super"):
        return True
    return depth < _DEEPEST and only_asks(program, file, call, depth + 1)
