"""Gradients of one rank alone, computed with behind ``no_sync()``: what ranks do with their own makes parameters differ."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from itertools import takewhile

from .backwards import goes_backward
from .file import File
from .gradient_reads import is_tensor_read, reads_gradients, steps_behind


def uses_own_gradients(file: File, node: ast.AST) -> bool:
    """Whether what a rank computed by itself is read, inside of a ``no_sync()`` or behind it, before a backward reduces it.

    ``node`` is the place where ``no_sync`` is read off a model: entered at once, or by a variable.
    """
    return any(_uses_inside(file, place, block) for place, block in _blocks(file, node))


def uses_own_gradients_at_times(file: File, node: ast.AST) -> bool:
    """The same, where a choice of the context and a test behind it say together that it comes to that."""
    return any(
        isinstance(choice, ast.IfExp) and _reads_where_chosen(file, place, choice, block)
        for place, block in _blocks(file, node)
        for choice in takewhile(lambda around, block=block: around is not block, file.ancestors(place))
    )


def _blocks(file: File, node: ast.AST) -> Iterator[tuple[ast.AST, ast.With]]:
    """The blocks that enter what is read at a place, each with what stands for it there."""
    block = next((a for a in file.ancestors(node) if isinstance(a, (ast.With, ast.stmt))), None)
    if isinstance(block, ast.With):
        yield node, block
    elif isinstance(block, ast.Assign) and isinstance(block.targets[0], ast.Name) and not isinstance(block.value, ast.IfExp):
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
    statements, index = file.block_of(block)
    return goes_backward(file, block) and _reads_first(file, statements[index + 1 :])


def _reads_where_chosen(file: File, place: ast.AST, choice: ast.IfExp, block: ast.With) -> bool:
    """The same, behind ``no_sync() if first else nullcontext()``, where ``if first:`` is asked again."""
    statements, index = file.block_of(block)
    asked_again = (s for s in statements[index + 1 :] if isinstance(s, ast.If) and ast.dump(s.test) == ast.dump(choice.test))
    is_chosen = place in ast.walk(choice.body)
    return is_chosen and goes_backward(file, block) and any(_reads_first(file, again.body) for again in asked_again)


def _reads_first(file: File, statements: Iterable[ast.stmt]) -> bool:
    before = takewhile(lambda statement: not goes_backward(file, statement), _in_order(file, statements))
    return any(reads_gradients(file, statement) for statement in before)


def _in_order(file: File, statements: Iterable[ast.stmt]) -> Iterator[ast.stmt]:
    """Statements, with those of blocks that go backward somewhere in the place of the blocks."""
    for statement in statements:
        if isinstance(statement, (ast.If, ast.With)) and goes_backward(file, statement):
            yield from _in_order(file, statement.body)
        else:
            yield statement
