"""Whether gradients of micro-batches may be thrown away before they are reduced: at the begin of an epoch, after an overflow.

DDP and FSDP1 had them in ``p.grad``, where an optimizer's ``zero_grad()`` reaches them; FSDP2 has them elsewhere.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator

from .file import File
from .program import Program

BY_HAND = "p.grad = None does not reach gradients that wait to be reduced: those of a window given up stay for the next step"
"""What is told where nothing lets them be dropped."""
_LOOPS = (ast.For, ast.AsyncFor, ast.While)


def may_give_up_windows(program: Program, paths: Iterable[str]) -> bool:
    """Whether some of these files call ``zero_grad()`` other than right beside a step of that optimizer, and more than once."""
    given_up = program.once(_places)
    return any(path in given_up and not given_up[path].isdisjoint({"zero_grad"}) for path in paths)


def gives_up_by_hand(program: Program, paths: Iterable[str]) -> bool:
    """Whether some of these files do so by ``p.grad = None`` or ``p.grad.zero_()``, which nothing can be told of."""
    given_up = program.once(_places)
    return any(path in given_up and not given_up[path].isdisjoint({"grad"}) for path in paths)


def _places(program: Program) -> dict[str, set[str]]:
    """How each file throws gradients away that may wait to be reduced."""
    found: dict[str, set[str]] = {}
    for file in map(program.file, program.relevant_files()):
        for place, reset in _resets(file) if "grad" in file.source.text else ():
            kind = "zero_grad" if isinstance(reset, ast.Attribute) and reset.attr == "zero_grad" else "grad"
            if kind not in found.get(file.path, ()) and not _is_beside_step(file, place, reset) and _is_repeated(file, place):
                found.setdefault(file.path, set()).add(kind)
    return found


def _resets(file: File) -> Iterator[tuple[ast.AST, ast.Attribute]]:
    """The places that throw gradients away, with ``optimizer.zero_grad`` or ``p.grad`` in them."""
    for node in file.nodes(ast.Attribute):
        parent = file.parents[node]
        if node.attr == "zero_grad" and isinstance(parent, ast.Call) and parent.func is node:
            yield parent, node
        if node.attr == "grad" and isinstance(parent, ast.Assign) and getattr(parent.value, "value", "") is None:
            yield parent, node
        if node.attr == "grad" and isinstance(parent, ast.Attribute) and parent.attr == "zero_":
            yield parent, node


def _is_beside_step(file: File, place: ast.AST, reset: ast.Attribute) -> bool:
    """Whether the optimizer makes a step in the same block, whatever happens: what is reset has been used, or is yet to come."""
    block, _ = file.block_of(file.statement(place))
    if reset.attr == "grad":  # in a loop over parameters
        loop = next((a for a in file.ancestors(place) if isinstance(a, _LOOPS)), None)
        block = file.block_of(loop)[0] if loop is not None else block
    pending: list[ast.AST] = list(block)
    while pending:
        node = pending.pop()
        method = node.func if isinstance(node, ast.Call) else None
        if isinstance(node, ast.Call) and isinstance(method, ast.Attribute) and method.attr == "step":
            if reset.attr == "grad" or ast.unparse(reset.value) in map(ast.unparse, (method.value, *node.args)):
                return True
        if isinstance(node, (ast.Expr, ast.Assign, ast.With, ast.Call)):
            pending += ast.iter_child_nodes(node)
    return False


def is_right_behind_step(file: File, reset: ast.AST) -> bool:
    """Whether an optimizer has made a step in the same block, and nothing but other steps has been called since."""
    block, index = file.block_of(file.statement(reset))
    has_stepped = False
    for statement in reversed(block[:index]):
        calls = [n for n in ast.walk(statement) if isinstance(n, ast.Call)]
        if not all(isinstance(call.func, ast.Attribute) and call.func.attr in ("step", "update") for call in calls):
            break
        has_stepped = has_stepped or any(_is_of_optimizer(call) for call in calls)
    return has_stepped


def _is_of_optimizer(call: ast.Call) -> bool:
    """Whether this is ``optimizer.step()`` or ``scaler.step(optimizer)``, no scheduler's."""
    method = call.func
    return isinstance(method, ast.Attribute) and method.attr == "step" and "sched" not in ast.unparse(method.value).lower()


def _is_repeated(file: File, node: ast.AST, seen: frozenset[ast.AST] = frozenset()) -> bool:
    """Whether a place may be reached again: it is in a loop, or in a function that nobody is seen to call just once."""
    function = file.function(node)
    for around in file.ancestors(node):
        if around is function:
            break
        if isinstance(around, _LOOPS) and not _is_over_parameters(around):
            return True
    if function is None:
        return False
    callers = file.program.callers(file, function)
    if len(callers) != 1 or function in seen:
        return True
    return _is_repeated(*callers[0], seen | {function})


def _is_over_parameters(loop: ast.AST) -> bool:
    over = getattr(loop, "iter", None)
    return isinstance(over, ast.Call) and getattr(over.func, "attr", "") in ("parameters", "named_parameters")
