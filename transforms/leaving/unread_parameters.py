"""Parameters that only rewritten code read: they stay for those who give them, and are named."""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence

from ..judge import Judgement
from ..migration import Migration
from ..text.edits import Edit, apply_edits
from .leftovers import Function, functions_by_name


def name_unread_parameters(
    migration: Migration, judgements: Sequence[Judgement], edits: Mapping[str, Sequence[Edit]]
) -> None:
    """Says of a site in whose function a parameter is not read any more that it is not."""
    for path, made in edits.items():
        view = migration.program.view(path)
        after = functions_by_name(ast.parse(apply_edits(view.source, made)))
        for name, before in functions_by_name(view.tree).items():
            gone = _read_parameters(before) - _read_parameters(after[name]) if name in after else set[str]()
            if not gone:
                continue
            span = view.source.span(before)
            for parameter in sorted(gone):
                mentions = [n for n in ast.walk(before) if isinstance(n, ast.Name) and n.id == parameter]
                places = [view.source.span(mention)[0] for mention in mentions]
                judgement = max(judgements, key=lambda judgement: _concern(judgement, path, span, places))
                if _concern(judgement, path, span, places):
                    judgement.notes.append(f"{parameter} is not read there any more")


def _concern(judgement: Judgement, path: str, span: tuple[int, int], places: Sequence[int]) -> int:
    """How much of a function a site's patches change, those that take mentions out before all others; 0 for none."""
    if not judgement.applied:
        return 0
    inside = [p for p in judgement.outcome.patches if p.file == path and span[0] <= p.start and p.end <= span[1]]
    taken = [p.end - p.start for p in inside if any(p.start <= place < p.end for place in places)]
    return 1 + (max(taken) + 1 if taken else 0) if inside else 0


def _read_parameters(function: Function) -> set[str]:
    """Parameters that a function, or a function in it, reads."""
    arguments = function.args
    names = {a.arg for a in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)} - {"self", "cls"}
    return names & {n.id for n in ast.walk(function) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)}
