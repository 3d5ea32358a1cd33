"""Whether gradients of micro-batches may be thrown away before they are reduced: at the begin of an epoch, after an overflow.

DDP and FSDP1 had them in ``p.grad``, where an optimizer's ``zero_grad()`` reaches them; FSDP2 has them elsewhere.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable

from .file import File
from .program import Program

_LOOPS = (ast.For, ast.AsyncFor, ast.While)
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
_DEEPEST = 4


def may_give_up_windows(program: Program, paths: Iterable[str]) -> bool:
    """Whether some of these files reset gradients elsewhere than beside a step of the optimizer, and more than once."""
    for file in map(program.file, paths):
        if "zero_grad" not in file.source.text:
            continue
        for call in file.nodes(ast.Call):
            if getattr(call.func, "attr", "") == "zero_grad" and not _is_beside_step(file, call) and _is_repeated(file, call):
                return True
    return False


def _is_beside_step(file: File, call: ast.Call) -> bool:
    """Whether a step stands in the same block, not in a loop of its own: what is reset has been used, or is yet to come."""
    block, _ = file.block_of(file.statement(call))
    pending: list[ast.AST] = list(block)
    while pending:
        node = pending.pop()
        if isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "step":
            return True
        if not isinstance(node, (*_LOOPS, *_FUNCTIONS, ast.ClassDef)):
            pending += ast.iter_child_nodes(node)
    return False


def _is_repeated(file: File, node: ast.AST, depth: int = 0) -> bool:
    """Whether a place may be reached again: it is in a loop, or in a function that nobody is seen to call just once."""
    function = file.function(node)
    for around in file.ancestors(node):
        if around is function:
            break
        if isinstance(around, _LOOPS):
            return True
    if function is None:
        return False
    callers = file.program.callers(file, function)
    return not callers or depth > _DEEPEST or any(_is_repeated(caller, call, depth + 1) for caller, call in callers)
