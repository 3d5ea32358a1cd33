"""Gradients of one rank alone, computed with behind ``no_sync()``: what ranks do with their own makes parameters differ."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from itertools import takewhile

from .backwards import goes_backward
from .file import File
from .gradient_reads import is_tensor_read, reads_gradients, steps_behind


def uses_own_gradients(file: File, node: ast.AST) -> bool:
    """Whether what a rank computed by itself is read, inside of a ``no_sync()`` or behind it, before a backward reduces it.

    ``node`` is the place where ``no_sync`` is read off a model: entered at once, or by a variable.
    """
    return any(_uses_inside(file, place, block) for place, block in _blocks(file, node))


def _blocks(file: File, node: ast.AST) -> Iterator[tuple[ast.AST, ast.With]]:
    """The blocks that enter what is read at a place, each with what stands for it there."""
    block = next((a for a in file.ancestors(node) if isinstance(a, (ast.IfExp, ast.With, ast.stmt))), None)
    if isinstance(block, ast.With):
        yield node, block
    elif isinstance(block, ast.Assign) and isinstance(block.targets[0], ast.Name):
        uses = [use for use in file.names_by_id.get(block.targets[0].id, ()) if file.function(use) is file.function(node)]
        if sum(isinstance(use.ctx, ast.Store) for use in uses) > 1:
            return  # for some of the micro-batches it is another context
        for use in uses:
            if isinstance(use.ctx, ast.Load):
                around = next((a for a in file.ancestors(use) if isinstance(a, (ast.With, ast.stmt))), None)
                if isinstance(around, ast.With):
                    yield use, around


def _uses_inside(file: File, place: ast.AST, block: ast.With) -> bool:
    scope = file.function(place)
    around = takewhile(lambda node: node is not block, file.ancestors(place))
    if scope is None or any(isinstance(node, (ast.If, ast.IfExp)) for node in around):  # only for some of the micro-batches
        return False
    names = [n for n in ast.walk(scope) if isinstance(n, ast.Attribute)]
    inside = set(ast.walk(block))
    goes_on = any(n.attr in ("step", "backward") and n not in inside for n in names)
    is_read = any(n.attr == "grad" and isinstance(n.ctx, ast.Load) and is_tensor_read(file, n) for n in names)
    return (
        (is_read and not goes_on) or reads_gradients(file, block) or steps_behind(file, block) or _reads_behind(file, block)
    )


def _reads_behind(file: File, block: ast.With) -> bool:
    """Whether statements behind a block with a backward read gradients before the next one goes backward."""
    if not goes_backward(file, block):
        return False
    statements, index = file.block_of(block)
    following = takewhile(lambda statement: not goes_backward(file, statement), statements[index + 1 :])
    return any(reads_gradients(file, statement) for statement in following)
