"""Dictionaries that give each of their keys back, once it is rewritten: what is looked up in them is the answer."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence

from ..text.patches import Patch, patched
from ..view import FileView

_WHY = "each name stands for itself now"


def identity_tables(view: FileView, patches: Sequence[Patch]) -> list[Patch]:
    """Takes out local dictionaries that these patches make map every name to itself, and the look-ups in them."""
    return [patch for table in _tables(view, patches) for patch in _without(view, table)] if patches else []


def _tables(view: FileView, patches: Sequence[Patch]) -> Iterator[ast.Assign]:
    for statement in view.nodes(ast.Assign):
        start, end = view.source.span(statement.value)
        is_local = len(statement.targets) == 1 and isinstance(statement.targets[0], ast.Name) and view.function(statement)
        if not is_local or not isinstance(statement.value, ast.Dict) or not view.stands_alone(statement):
            continue
        if any(start <= patch.start and patch.end <= end for patch in patches):
            if _gives_keys(patched(view.source, (start, end), patches)) and len(view.block_of(statement)[0]) > 1:
                yield statement


def _gives_keys(text: str) -> bool:
    table = ast.parse(text, mode="eval").body
    return isinstance(table, ast.Dict) and all(
        isinstance(key, ast.Constant) and isinstance(value, ast.Constant) and key.value == value.value
        for key, value in zip(table.keys, table.values, strict=True)
    )


def _without(view: FileView, table: ast.Assign) -> Iterator[Patch]:
    (target,) = table.targets
    assert isinstance(target, ast.Name)
    scope = view.function(table)
    assert scope is not None
    mentions = [n for n in ast.walk(scope) if isinstance(n, ast.Name) and n.id == target.id and n is not target]
    look_ups = [parent for name in mentions if isinstance(parent := view.parents[name], ast.Subscript) and parent.value is name]
    if len(look_ups) < len(mentions) or not all(isinstance(look_up.ctx, ast.Load) for look_up in look_ups):
        return
    for look_up in look_ups:
        yield view.replace(look_up, (view.keep(look_up.slice),), _WHY)
    start, end = view.line_start(table), view.line_end(table)
    above = view.source.text[:start].rstrip(" \t")
    if above.endswith((":\n", "\n\n")):
        end += len(view.source.text[end:]) - len(view.source.text[end:].lstrip("\n"))
    yield Patch(view.path, start, end, (), _WHY)
