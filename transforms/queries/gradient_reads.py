"""Gradients that are computed with while some code runs, also in functions that it calls."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from .backwards import goes_backward, has_backward
from .file import File

_DEEPEST = 3
_SAME = frozenset({"data", "detach", "clone", "float", "double", "cpu", "to", "view", "flatten", "reshape"})
_POWERS = frozenset({"pow", "square", "abs", "sign", "pow_", "square_", "abs_", "sign_"})


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


def takes_powers(file: File, node: ast.AST) -> bool:
    """Whether the function around a place takes powers or absolute values of gradients: of an average they are others."""
    scope = file.function(node) or file.tree
    read = [n for n in ast.walk(scope) if isinstance(n, ast.Attribute) and n.attr == "grad" and isinstance(n.ctx, ast.Load)]
    read = [_itself(file, n) for n in read if is_tensor_read(file, n)]
    parents = [file.parents[n] for n in read]
    names = {t.id for p in parents if isinstance(p, ast.Assign) for t in p.targets if isinstance(t, ast.Name)}
    named = [n for n in ast.walk(scope) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load) and n.id in names]
    return any(_is_in_power(file, n) for n in (*read, *(_itself(file, n) for n in named)))


def _itself(file: File, gradient: ast.AST) -> ast.AST:
    """The expression around a gradient that has the same numbers: of ``p.grad`` in ``p.grad.detach().clone()`` all of it."""
    parent = file.parents[gradient]
    while getattr(parent, "attr", "") in _SAME or (isinstance(parent, ast.Call) and parent.func is gradient):
        gradient, parent = parent, file.parents[parent]
    return gradient


def _is_in_power(file: File, gradient: ast.AST) -> bool:
    parent = file.parents[gradient]
    if isinstance(parent, ast.BinOp):
        is_square = isinstance(parent.op, ast.Mult) and ast.dump(parent.left) == ast.dump(parent.right)
        return is_square or (isinstance(parent.op, ast.Pow) and parent.left is gradient)
    return isinstance(parent, ast.Attribute) and parent.attr in _POWERS


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
