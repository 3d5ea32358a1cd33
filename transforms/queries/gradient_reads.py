"""Gradients that are computed with while some code runs, also in functions that it calls."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from .backwards import goes_backward, has_backward
from .file import File

_DEEPEST = 3


def reads_gradients(file: File, block: ast.AST) -> bool:
    """Whether a block computes with ``p.grad``, but for what flags that functions are handed decide about."""
    pending, seen = [(file, block, 0)], {block}
    while pending:
        owner, place, depth = pending.pop()
        for node in _always(place):
            if isinstance(node, ast.Attribute) and node.attr == "grad" and isinstance(node.ctx, ast.Load):
                if is_tensor_read(owner, node):
                    return True
            for callee in owner.program.callees(owner, node) if isinstance(node, ast.Call) and depth < _DEEPEST else ():
                other, function = owner.program.function_node(callee)
                if function not in seen:
                    seen.add(function)
                    pending.append((other, function, depth + 1))
    return False


def steps_behind(file: File, block: ast.stmt) -> bool:
    """Whether an optimizer steps behind a block, in the same one around both, before anything goes backward."""
    statements, index = file.block_of(block)
    for statement in statements[index + 1 :]:
        if isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            continue
        methods = {n.func.attr for n in ast.walk(statement) if isinstance(n, ast.Call) and isinstance(n.func, ast.Attribute)}
        if goes_backward(file, statement) and "step" not in methods:
            return False
        if "step" in methods:
            return has_backward(block)
    return False


def is_tensor_read(file: File, gradient: ast.Attribute) -> bool:
    """Whether a gradient is computed with, other than to ask whether it is there, or to clear it."""
    parent = file.parents[gradient]
    is_function = isinstance(parent, ast.Call) and parent.func is gradient  # torch.autograd.grad
    return not is_function and not isinstance(parent, ast.Compare) and not (
        isinstance(parent, ast.Attribute) and parent.attr.endswith("_")
    )


def _always(block: ast.AST) -> Iterator[ast.AST]:
    """What lies in a block, without branches that a parameter of the function decides about: ``if update_grad:``."""
    arguments = getattr(block, "args", None)
    given = {a.arg for a in ast.walk(arguments) if isinstance(a, ast.arg)} if isinstance(arguments, ast.arguments) else set()
    pending: list[ast.AST] = list(ast.iter_child_nodes(block))
    while pending:
        node = pending.pop()
        yield node
        if isinstance(node, ast.If) and any(isinstance(n, ast.Name) and n.id in given for n in ast.walk(node.test)):
            continue
        pending += ast.iter_child_nodes(node)
